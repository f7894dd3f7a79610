package zookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

const (
	dialMost    = time.Second            // for one server; twice as long for a dial that may shake hands
	dialPause   = 50 * time.Millisecond  // after all servers were tried in vain; doubled each time
	dialLongest = 500 * time.Millisecond // up to this
)

// hosts gives the client library one server after the other. Pauses are dial's.
type hosts struct {
	s       *session
	servers []string
	next    int
}

func (h *hosts) Init(servers []string) error { h.servers = servers; return nil }
func (h *hosts) Len() int                    { return len(h.servers) }
func (h *hosts) Connected()                  {}

// Next returns the next server. Its second result makes the library look whether it was closed. A
// session that has expired is one: the library would open another in its place and send what was
// meant for the first.
func (h *hosts) Next() (string, bool) {
	server := h.servers[h.next%len(h.servers)]
	h.next++
	return server, !h.s.alive()
}

// dial connects to a server, after a pause if all of them were tried in vain.
func (s *session) dial(network, address string, _ time.Duration) (net.Conn, error) {
	s.progress()
	defer s.progress()
	s.mu.Lock()
	failed, ended := s.reach.failed, s.ended
	s.mu.Unlock()
	if ended {
		return nil, errEnded
	}
	if n := failed / len(s.st.servers); n > 0 && failed%len(s.st.servers) == 0 {
		pause := time.NewTimer(min(dialPause<<min(n-1, 10), dialLongest))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.ctx.Done():
		}
	}
	s.mu.Lock()
	s.reach.failed++ // until something is answered
	s.mu.Unlock()
	w, err := s.connect(network, address)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.ctx.Err() != nil { // abort found no connection
		_ = w.Conn.Close()
		err = s.ctx.Err()
	}
	if err != nil {
		s.reach.err = err
		return nil, err
	}
	s.wire = w
	return w, nil
}

// connect connects to a server, once it is known what is to be asked of it.
func (s *session) connect(network, address string) (*wire, error) {
	doubted := s.doubted()
	if s.st.tick() == 0 || doubted {
		shortest, err := s.st.shortest(s.ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.st.ticks.Store(int64(shortest) / 2)
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.st.dialMost)
	defer cancel()
	conn, err := s.st.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, s: s, in: bufio.NewReader(conn), proven: doubted}
	if s.watches() {
		w.watches = make(chan bool, 1)
	}
	return w, nil
}

// shortest opens a session of the servers' shortest length on a connection of its own, leaves it,
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
	const (
		asks     = 44 // protocol, last zxid, timeout, session, length of the password, password
		password = 16
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
	return time.Duration(binary.BigEndian.Uint32(greeting[8:])) * time.Millisecond, nil
}

// readGreeting reads the answer to a request for a session: length, protocol, timeout, session,
// password.
func readGreeting(r io.Reader) ([]byte, error) {
	const least, most = 20, 1 << 10
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
	if _, err := io.ReadFull(r, greeting[4:]); err != nil {
		return nil, err
	}
	if n := int32(binary.BigEndian.Uint32(greeting[least:])); n > int32(size-least) {
		return nil, fmt.Errorf("the server greets with %d bytes that are said to have a password of %d", size, n)
	}
	return greeting, nil
}
