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

// Next returns the next server. Its second result makes the library look whether it was closed. A
// session that has expired is one: the library would open another in its place and send what was
// meant for the first.
func (h *hosts) Next() (string, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
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
	s.reach.failed++ // until the server has greeted
	s.mu.Unlock()
	w, err := s.connect(network, address)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.reach.err = err
		return nil, err
	}
	s.wire = w
	return w, nil
}

// connect connects to a server, once it is known what is to be asked of it.
func (s *session) connect(network, address string) (*wire, error) {
	tick, doubted := s.st.tick.Load(), s.doubted()
	if tick == 0 || doubted {
		shortest, err := s.st.shortest(s.ctx, network, address)
		if err != nil {
			return nil, err
		}
		tick = int64(shortest) / 2
		s.st.tick.Store(tick)
	}
	s.mu.Lock()
	s.tick = time.Duration(tick)
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(s.ctx, dialMost)
	defer cancel()
	conn, err := s.st.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn, s: s, in: bufio.NewReader(conn), proven: doubted}, nil
}
