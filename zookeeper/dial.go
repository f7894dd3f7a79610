package zookeeper

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

const (
	dialMost    = time.Second            // for one server
	dialPause   = 50 * time.Millisecond  // after all servers were tried in vain; doubled each time
	dialLongest = 500 * time.Millisecond // up to this
)

// silent is the client library's logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// hosts gives the client library one server after the other. Pauses are dial's.
type hosts struct {
	s       *session
	mu      sync.Mutex
	servers []string
	next    int
}

func (h *hosts) Init(servers []string) error { h.servers = servers; return nil }
func (h *hosts) Len() int                    { return len(h.servers) }
func (h *hosts) Connected()                  {}

// Next returns the next server. Its second result makes the library look whether it was closed.
func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server := h.servers[h.next%len(h.servers)]
	h.next++
	return server, h.s.ctx.Err() != nil
}

// dial connects to a server, after a pause if all of them were tried in vain.
func (s *session) dial(network, address string, _ time.Duration) (net.Conn, error) {
	s.mu.Lock()
	failed := s.reach.failed
	s.mu.Unlock()
	if n := failed / len(s.d.servers); n > 0 && failed%len(s.d.servers) == 0 {
		pause := time.NewTimer(min(dialPause<<min(n-1, 10), dialLongest))
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-s.ctx.Done():
		}
	}
	ctx, cancel := context.WithTimeout(s.ctx, dialMost)
	defer cancel()
	s.mu.Lock()
	s.reach.failed++ // until the server has greeted
	s.mu.Unlock()
	conn, err := s.d.dial(ctx, network, address)
	if err != nil {
		s.mu.Lock()
		s.reach.err = err
		s.mu.Unlock()
		return nil, err
	}
	w := &wire{Conn: conn, s: s, in: bufio.NewReader(conn)}
	s.mu.Lock()
	s.wire = w
	s.mu.Unlock()
	return w, nil
}
