package zookeeper

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// shortest opens a session of the servers' shortest length on a connection of its own, closes it,
// and returns that length. A server without a leader hangs up instead; so does none that is behind
// what a client has seen, for the session tells of nothing. A server that answers has done what
// the majority agreed on last.
func (st *store) shortest(ctx context.Context, network, address string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, greetMost)
	defer cancel()
	conn, err := st.dial(ctx, network, address)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return openAndClose(conn)
}

// openAndClose sends a request for a session of 1 ms, reads the greeting, and sends the request
// that ends the session.
func openAndClose(conn net.Conn) (time.Duration, error) {
	const (
		asks     = 44 // protocol, last zxid, timeout, session, length of the password, password
		password = 16
		leave    = -11 // closeSession
	)
	request := make([]byte, 4+asks)
	binary.BigEndian.PutUint32(request, asks)
	binary.BigEndian.PutUint32(request[timeoutAt:], 1)
	binary.BigEndian.PutUint32(request[4+asks-password-4:], password)
	if _, err := conn.Write(request); err != nil {
		return 0, err
	}
	greeting, err := readGreeting(conn)
	if err != nil {
		return 0, err
	}
	end := binary.BigEndian.AppendUint32(nil, 8)
	end = binary.BigEndian.AppendUint32(end, 1) // its number
	xid := int32(leave)
	end = binary.BigEndian.AppendUint32(end, uint32(xid))
	if _, err := conn.Write(end); err != nil {
		return 0, err
	}
	// until the server, which has closed the session, hangs up; or for as long as may be
	_, _ = io.Copy(io.Discard, conn)
	return time.Duration(binary.BigEndian.Uint32(greeting[8:])) * time.Millisecond, nil
}

// readGreeting reads the answer to a request for a session: length, protocol, timeout, session,
// password.
func readGreeting(r io.Reader) ([]byte, error) {
	const least, most = 16, 1 << 10
	greeting := make([]byte, 4)
	if _, err := io.ReadFull(r, greeting); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(greeting)
	if size < least || size > most {
		return nil, fmt.Errorf("what answers is no ZooKeeper server: "+
			"it greets with %d bytes, want %d to %d", size, least, most)
	}
	greeting = append(greeting, make([]byte, size)...)
	_, err := io.ReadFull(r, greeting[4:])
	return greeting, err
}
