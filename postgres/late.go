package postgres

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// slowFor is how long a server counts as slow after a statement that had no answer in time.
	slowFor = 10 * time.Second
	// lateMost is how long a statement may outlive its caller then.
	lateMost = 2 * time.Second
	// heardFor is how long connections are not pinged after an answer that was late: less than a third of most TTLs,
	// for a network may freeze them after it.
	heardFor = 3 * time.Second
)

// slow says whether the server is slow. pgx closes a connection on which no answer comes in time, cancels the statement
// over a second one, and dials a third. When many processes begin at once, a server would soon do nothing else, and
// answer nothing in time. So while it is slow, a statement goes on after its caller has gone; the caller counts it as
// under way in any case. After an answer to such a statement, connections are not pinged for a while: no ping would be
// answered in time.
type slow struct {
	mu    sync.Mutex
	most  int       // statements that may outlive their callers at once; 0: none, and the server never counts as slow
	late  int       // those that do
	last  time.Time // when a statement was late
	heard time.Time // when one of them was answered
	// asked are those that do, by what they ask.
	asked map[string]*flight
}

// flight is a statement that may outlive its caller. The first caller that asks the same again meanwhile gets its
// answer, because a copy would stand behind it in the line of a lock. The second caller asks by another connection, in
// case this one is dead.
type flight struct {
	statement
	over chan struct{} // closed when it has ended
	err  error
	// Guarded by slow.mu.
	ended  bool
	joined bool
	timer  *time.Timer // ends it; nil: its caller is there
}

// asks is what a statement asks, if the same may be asked again.
func (s *statement) asks() string {
	if !s.same {
		return ""
	}
	return s.text + "\x00" + string(bytes.Join(s.raw, []byte{0}))
}

// under is one that asks the same, has outlived its caller, and was not joined before; or nil.
func (l *slow) under(s *statement) *flight {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.asked) == 0 {
		return nil
	}
	f := l.asked[s.asks()]
	if f == nil || f.joined {
		return nil
	}
	f.joined = true
	return f
}

// join waits for the answer to f.
func (l *slow) join(ctx context.Context, f *flight, s *statement) error {
	s.sent = true
	select {
	case <-f.over:
		s.told, s.at = f.told, f.at
		if errors.Is(f.err, context.Canceled) { // it was given up just now
			return context.DeadlineExceeded
		}
		return f.err
	case <-ctx.Done():
		l.note(ctx, ctx.Err())
		return ctx.Err()
	}
}

// now reports whether the server is slow.
func (l *slow) now() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.most > 0 && time.Since(l.last) < slowFor
}

// answers reports whether it is, and answers.
func (l *slow) answers() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(l.heard) < heardFor
}

// note takes in how a statement has ended.
func (l *slow) note(ctx context.Context, err error) {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.last = time.Now()
	}
}

// enter reports whether a statement may outlive its caller, which has gone. After lateMost it calls end.
func (l *slow) enter(f *flight, end func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.ended || l.late >= l.most {
		return false
	}
	l.late++
	f.timer = time.AfterFunc(lateMost, end)
	if asks := f.asks(); asks != "" {
		if l.asked == nil {
			l.asked = map[string]*flight{}
		}
		l.asked[asks] = f
	}
	return true
}

// leave takes in that a statement has ended, with the answer or without.
func (l *slow) leave(f *flight) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.ended = true; f.timer == nil {
		return
	}
	f.timer.Stop()
	l.late--
	if asks := f.asks(); l.asked[asks] == f {
		delete(l.asked, asks)
	}
	if f.err == nil {
		l.heard = time.Now()
	}
}

// outlive asks on a goroutine of its own, and gives the connection back when there is an answer.
func (st *store) outlive(ctx context.Context, conn link, s *statement) error {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	f := &flight{statement: *s, over: make(chan struct{})}
	st.flying.Go(func() {
		defer end()
		f.err = conn.ask(lasting, &f.statement)
		conn.release()
		st.slow.leave(f)
		close(f.over)
	})
	select {
	case <-f.over:
		s.told = f.told
		return f.err
	case <-ctx.Done():
	}
	st.slow.note(ctx, ctx.Err())
	if !st.slow.enter(f, end) {
		end()
	}
	return ctx.Err()
}
