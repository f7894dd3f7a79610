package zookeeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/zookeeper"
)

// shortening dials. From cut on sessions are granted for 4 s, as by servers that have this for their longest.
type shortening struct {
	mu    sync.Mutex
	short bool
	conns []net.Conn
}

func (s *shortening) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, c)
	if s.short {
		return &shortened{Conn: c}, nil
	}
	return c, nil
}

func (s *shortening) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.short = true
	for _, c := range s.conns {
		_ = c.Close()
	}
}

// shortened is a connection with a greeting of another server.
type shortened struct {
	net.Conn
	greeting sync.Once
	in       io.Reader
}

func (c *shortened) Read(p []byte) (int, error) {
	c.greeting.Do(func() {
		head := make([]byte, 12) // length, protocol, timeout
		n, _ := io.ReadFull(c.Conn, head)
		if n == len(head) {
			binary.BigEndian.PutUint32(head[8:], 4000)
		}
		c.in = io.MultiReader(bytes.NewReader(head[:n]), c.Conn) // an error comes again
	})
	return c.in.Read(p)
}

// A session that comes back to a server with a lower maxSessionTimeout may end before its holds do: they are told at
// once.
func TestSessionIsMadeShorter(t *testing.T) {
	t.Parallel()
	z := single(t)
	s := &shortening{}
	l := through(t, z.Addrs(), zookeeper.Options{Dial: s.dial})
	le := lock(t, l.Mutex("x")) // for 30 s
	s.cut()
	lost(t, le, 15*time.Second, fencelock.SessionLost)
}
