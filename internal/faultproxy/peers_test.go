package faultproxy_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/faultproxy"
)

// store answers each line "x" with "done x" and remembers it.
type store struct {
	addr string
	mu   sync.Mutex
	did  []string
}

func newStore(t *testing.T) *store {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &store{addr: l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return s
}

func (s *store) serve(c net.Conn) {
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		s.mu.Lock()
		s.did = append(s.did, lines.Text())
		s.mu.Unlock()
		if _, err := fmt.Fprintf(c, "done %s\n", lines.Text()); err != nil {
			return
		}
	}
}

func (s *store) done() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.did, " ")
}

// client is one connection that reads lines.
type client struct {
	*net.TCPConn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	must(t, err)
	t.Cleanup(func() { c.Close() })
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	return &client{c.(*net.TCPConn), bufio.NewReader(c)}
}

func (c *client) send(t *testing.T, line string) {
	t.Helper()
	_, err := io.WriteString(c, line+"\n")
	must(t, err)
}

func (c *client) receive(t *testing.T, want string) {
	t.Helper()
	got, err := c.r.ReadString('\n')
	if err != nil || got != want+"\n" {
		t.Fatalf("got %q, %v, want %q", got, err, want)
	}
}

// silent checks that nothing comes, not even an end, for a moment.
func (c *client) silent(t *testing.T) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(30*time.Millisecond)))
	if got, err := c.r.ReadByte(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("got %q, %v, want silence", got, err)
	}
	must(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
}

// broken checks that the connection was reset.
func (c *client) broken(t *testing.T) {
	t.Helper()
	if got, err := c.r.ReadString('\n'); !errors.Is(err, syscall.ECONNRESET) {
		t.Fatalf("got %q, %v, want a reset", got, err)
	}
}

// refused checks that a new connection is reset, before or after Dial returns.
func refused(t *testing.T, p *faultproxy.Proxy) {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("new connection: got %v, want a reset", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
