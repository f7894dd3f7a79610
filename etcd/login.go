package etcd

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/core"
)

const (
	// loginAge is how long after its answer a login also serves streams that are opened.
	loginAge = time.Second
	// loginMost bounds a login.
	loginMost = 15 * time.Second
)

// logins makes the logins of a client that come together one. clientv3 logs in for each stream that it opens (3.7),
// and to check a password costs the server a tenth of a second of a processor, on purpose: where it is busy, a stream
// is given up before its login is through, and another one begun, which would cost it as much again. So a login goes on
// when its caller has gone.
type logins struct {
	clientv3.Auth
	flying core.Group

	mu   sync.Mutex
	last *login
}

// login is one that is under way, or over. But for done it is guarded by logins.mu.
type login struct {
	done  chan struct{} // closed when it is over
	over  time.Time     // when that was
	resp  *clientv3.AuthenticateResponse
	err   error
	tries int       // that have begun
	open  int       // of them, those without an answer
	next  time.Time // when another begins beside them: their members may hang
}

// opens is the key of a context under which a stream is opened. Other logins come after the server has refused a token:
// they want one that is newer.
type opens struct{}

// opening returns ctx for the opening of a stream.
func opening(ctx context.Context) context.Context { return context.WithValue(ctx, opens{}, true) }

// Authenticate implements clientv3.Auth.
func (l *logins) Authenticate(ctx context.Context, user, password string) (*clientv3.AuthenticateResponse, error) {
	in := l.join(ctx.Value(opens{}) != nil)
	for {
		next := time.NewTimer(l.ask(ctx, in, user, password))
		select {
		case <-in.done:
			next.Stop()
			return in.resp, in.err
		case <-ctx.Done():
			next.Stop()
			return nil, ctx.Err()
		case <-next.C:
		}
	}
}

// join returns the login that is under way, or one that is over and whose answer will do, or another.
func (l *logins) join(aged bool) *login {
	l.mu.Lock()
	defer l.mu.Unlock()
	in := l.last
	if in == nil || !in.over.IsZero() && (!aged || in.err != nil || time.Since(in.over) > loginAge) {
		in = &login{done: make(chan struct{})}
		l.last = in
	}
	return in
}

// ask begins a try of a login if it is time for one, and returns when it is time for another.
func (l *logins) ask(ctx context.Context, in *login, user, password string) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if in.over.IsZero() && !now.Before(in.next) && ctx.Err() == nil {
		in.next = now.Add(firstMost << in.tries)
		in.tries++
		in.open++
		l.flying.Go(func() { l.try(context.WithoutCancel(ctx), in, user, password) })
	}
	return in.next.Sub(now)
}

// try asks once. The first that the server answers ends the login, or the last that fails.
func (l *logins) try(ctx context.Context, in *login, user, password string) {
	ctx, cancel := context.WithTimeout(ctx, loginMost) // closing the client ends it too
	defer cancel()
	resp, err := l.Auth.Authenticate(ctx, user, password)
	l.mu.Lock()
	defer l.mu.Unlock()
	in.open--
	if in.over.IsZero() && (known(err) || in.open == 0) {
		in.resp, in.err, in.over = resp, err, time.Now()
		close(in.done)
	}
}
