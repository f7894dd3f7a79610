package zookeeper

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// errEnded is the answer of a session that is over.
var errEnded = errors.New("the ZooKeeper session has ended")

// session is one session of ZooKeeper: the liveness that holds and waiters of one length share. It lives until it
// expires, until nobody has used it for half its length, or until Close.
type session struct {
	d       *Driver
	conn    *zk.Conn
	length  time.Duration // what was asked for
	base    bool          // kept while the driver is open
	gone    chan struct{} // closed when the client library's goroutines have ended
	ctx     context.Context
	cancel  context.CancelFunc // ends dials
	over    chan struct{}      // closed when the session is of no use any more
	marks   marks
	batches batches
	idle    atomic.Bool // nobody uses it

	mu       sync.Mutex
	up       chan struct{} // closed while it is connected
	granted  time.Duration // what the server granted
	id       int64
	ended    bool
	users    int
	timer    *time.Timer      // closes a session that nobody uses
	wire     *wire            // the present connection
	posts    map[string]*post // by path
	reach    reach
	authed   chan struct{} // of size 1: the call that authenticates has it
	authDone bool
}

// openSession starts to open a session of a length; it does not wait for an answer.
func (d *Driver) openSession(length time.Duration, base bool) (*session, error) {
	s := &session{
		d: d, length: length, base: base, gone: make(chan struct{}), over: make(chan struct{}),
		up: make(chan struct{}), posts: map[string]*post{},
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.marks.init()
	d.flying.Add(1) // until close is done
	conn, events, err := zk.Connect(d.servers, length,
		zk.WithDialer(s.dial), zk.WithHostProvider(&hosts{s: s}), zk.WithEventCallback(s.event),
		zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		s.cancel()
		d.flying.Done()
		return nil, backend.Invalid("the ZooKeeper servers: %v", err)
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	go func() {
		for range events { // they came to the callback
		}
		close(s.gone)
	}()
	return s, nil
}

// event is the client library's callback. It must not block.
func (s *session) event(e zk.Event) {
	switch {
	case e.Type == zk.EventSession && e.State == zk.StateHasSession:
		s.mu.Lock()
		s.upLocked()
		s.mu.Unlock()
	case e.Type == zk.EventSession && e.State == zk.StateDisconnected:
		s.mu.Lock()
		s.downLocked()
		s.mu.Unlock()
		s.d.forgetStore()
	case e.Type == zk.EventSession && e.State == zk.StateExpired:
		s.end()
	case e.Type == zk.EventSession && e.State == zk.StateAuthFailed:
		s.end()
	case e.Path != "":
		s.fire(e)
	}
}

// upLocked lets callers go on.
func (s *session) upLocked() {
	select {
	case <-s.up:
	default:
		close(s.up)
	}
}

// downLocked makes callers wait for the next connection.
func (s *session) downLocked() {
	select {
	case <-s.up:
		s.up = make(chan struct{})
	default:
	}
}

// greeted takes in the server's answer to the request for a session, which was sent at at.
func (s *session) greeted(at backend.Instant, granted time.Duration, id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == 0 {
		return // expired, as the library will find
	}
	s.granted, s.id = granted, id
	s.reach.greeted(at, granted)
}

// refused takes in that a server hung up instead of greeting.
func (s *session) refused() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reach.refused++
}

// forgetful reports whether the session is to ask without saying what it has seen. A server that is behind that
// hangs up, so that the client goes to another. When all of them do, again and again, the ensemble has lost its
// data, and none would ever say that the session is over.
func (s *session) forgetful() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reach.refused >= 2*len(s.d.servers)
}

// answered takes in that a request was answered, which was sent at at.
func (s *session) answered(at backend.Instant, write bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reach.answered(at, write, s.granted)
}

// await returns when the session is connected.
func (s *session) await(ctx context.Context) error {
	for {
		s.mu.Lock()
		up, ended := s.up, s.ended
		s.mu.Unlock()
		if ended {
			return errEnded
		}
		select {
		case <-up:
			return nil
		default:
		}
		select {
		case <-up:
			return nil
		case <-s.over:
			return errEnded
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.reach.err != nil {
				return &unreached{ctx.Err(), s.reach.err}
			}
			return ctx.Err()
		}
	}
}

// unreached is the end of a ctx while no server could be reached.
type unreached struct{ ctx, err error }

func (e *unreached) Error() string   { return e.err.Error() }
func (e *unreached) Unwrap() []error { return []error{e.ctx, e.err} }

// end makes the session useless: its holders are told, its nodes go. It is called when the server says that it
// has expired, and for one that nobody uses. It does not block.
func (s *session) end() { s.endIf(func() bool { return true }) }

// endIf is end if still, when nobody can come to use the session, the condition holds.
func (s *session) endIf(still func() bool) {
	s.mu.Lock()
	if s.ended || !still() {
		s.mu.Unlock()
		return
	}
	s.ended = true
	close(s.over)
	if s.timer != nil {
		s.timer.Stop()
	}
	posts := s.posts
	s.posts = nil
	s.mu.Unlock()
	s.d.forget(s)
	for _, p := range posts {
		for w := range p.ws {
			w.f(false)
		}
	}
	s.d.sessionLost(s)
	go s.close()
}

// close ends the session at the server, if it can be reached, and waits for the library's goroutines.
func (s *session) close() {
	defer s.d.flying.Done()
	// Not reached, there is nobody to tell.
	abort := time.AfterFunc(closeMost, s.abort)
	defer abort.Stop()
	s.mu.Lock()
	connected := false
	select {
	case <-s.up:
		connected = true
	default:
	}
	s.mu.Unlock()
	if !connected {
		s.abort()
	}
	s.conn.Close()
	s.abort()
	<-s.gone
}

// closeMost is what a session has for its farewell.
const closeMost = 700 * time.Millisecond

// abort breaks the connection and ends dials.
func (s *session) abort() {
	s.cancel()
	s.mu.Lock()
	w := s.wire
	s.mu.Unlock()
	if w != nil {
		_ = w.Close() // it may be closed already
	}
}

// use counts a user in; false: the session is over. unuse counts it out.
func (s *session) use() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.users++
	s.idle.Store(false)
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	return true
}

func (s *session) unuse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users--
	if s.users > 0 || s.ended || s.base {
		return
	}
	s.idle.Store(true)
	s.timer = time.AfterFunc(s.length/2, func() {
		s.endIf(func() bool { return s.users == 0 })
	})
}

// unused reports whether the session need not be kept alive.
func (s *session) unused() bool { return s.idle.Load() }

// alive reports whether the session is of use.
func (s *session) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.ended
}

// most is the length that the server granted; 0 before it did.
func (s *session) most() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.granted
}

// owner is the session's number, as its nodes show it.
func (s *session) owner() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.id
}

// covers reports whether the server surely keeps the session for d after at.
func (s *session) covers(at backend.Instant, d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reach.until.Sub(at) >= d
}
