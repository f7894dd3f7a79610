package stores

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// pgwire is a connection in Postgres's protocol (version 3), for readiness checks and set-up only: simple queries, no
// password, no TLS.
type pgwire struct{ conn net.Conn }

// dialPostgres connects as the superuser. The connection's deadline is that of ctx.
func dialPostgres(ctx context.Context, addr string) (*pgwire, error) {
	conn, err := dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	c := &pgwire{conn}
	if err := c.hello(); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *pgwire) hello() error {
	const protocol = 3 << 16
	hello := binary.BigEndian.AppendUint32(nil, protocol)
	hello = append(hello, "user\x00"+pgUser+"\x00database\x00"+pgUser+"\x00\x00"...)
	if err := c.send(nil, hello); err != nil {
		return err
	}
	_, err := c.untilReady()
	return err
}

// query runs SQL and returns the first column of the first row.
func (c *pgwire) query(sql string) (string, error) {
	if err := c.send([]byte{'Q'}, append([]byte(sql), 0)); err != nil {
		return "", err
	}
	return c.untilReady()
}

func (c *pgwire) close() { c.conn.Close() }

// send sends one message: its kind, its length with the length itself, its body.
func (c *pgwire) send(kind, body []byte) error {
	b := binary.BigEndian.AppendUint32(kind, uint32(len(body)+4))
	_, err := c.conn.Write(append(b, body...))
	return err
}

// untilReady reads messages until the server waits for the next query.
func (c *pgwire) untilReady() (value string, err error) {
	var failure error
	seen := false
	for {
		var head [5]byte
		if _, err := io.ReadFull(c.conn, head[:]); err != nil {
			return "", errors.Join(failure, err)
		}
		body := make([]byte, max(binary.BigEndian.Uint32(head[1:]), 4)-4)
		if _, err := io.ReadFull(c.conn, body); err != nil {
			return "", errors.Join(failure, err)
		}
		switch head[0] {
		case 'Z':
			return value, failure
		case 'E':
			failure = pgError(body)
		case 'R':
			if len(body) < 4 || binary.BigEndian.Uint32(body) != 0 {
				return "", errors.New("the server wants a password")
			}
		case 'D':
			if !seen {
				value, seen = firstColumn(body), true
			}
		}
	}
}

// firstColumn is the first value of a row: the number of columns, then each value's length and bytes.
func firstColumn(row []byte) string {
	if len(row) < 6 {
		return ""
	}
	n := int32(binary.BigEndian.Uint32(row[2:]))
	if n < 0 || int(n) > len(row)-6 {
		return ""
	}
	return string(row[6 : 6+n])
}

// pgError takes the code and the text out of an error message.
func pgError(body []byte) error {
	fields := map[byte]string{}
	for f := range bytes.SplitSeq(body, []byte{0}) {
		if len(f) > 0 {
			fields[f[0]] = string(f[1:])
		}
	}
	return fmt.Errorf("%s (%s)", fields['M'], fields['C'])
}
