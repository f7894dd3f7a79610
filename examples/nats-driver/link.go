package natskv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
)

// callLimit bounds one step: a read and a write.
const callLimit = time.Second

// errCut: the connection broke while the answer was under way.
var errCut = errors.New("the connection to NATS broke")

// link follows the connection: it ends what waits for an answer when the connection breaks, and wakes those who wait for a
// lock when it is back, for what was published meanwhile is gone.
type link struct {
	nc     *nats.Conn
	status chan nats.Status
	done   chan struct{} // closed when follow has ended

	mu      sync.Mutex
	number  int
	present context.Context // of the connection: over when it breaks
	cut     context.CancelFunc
	up      chan struct{} // closed while there is a connection
	waiters map[chan struct{}]struct{}
}

func newLink(nc *nats.Conn) *link {
	l := &link{
		nc: nc, status: nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.CLOSED), done: make(chan struct{}),
		up: make(chan struct{}), waiters: map[chan struct{}]struct{}{},
	}
	l.present, l.cut = context.WithCancel(context.Background())
	close(l.up)
	go l.follow()
	return l
}

func (l *link) close() {
	l.nc.RemoveStatusListener(l.status) // closes it
	<-l.done
	l.cut()
}

func (l *link) follow() {
	defer close(l.done)
	for s := range l.status {
		l.mu.Lock()
		if l.present.Err() == nil {
			l.cut()
			l.up = make(chan struct{})
			l.number++
		}
		if s == nats.CONNECTED {
			l.present, l.cut = context.WithCancel(context.Background())
			close(l.up)
			for w := range l.waiters {
				poke(w)
			}
		}
		l.mu.Unlock()
	}
}

// epoch is a number for the present connection.
func (l *link) epoch() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.number
}

// wakes returns a channel that is sent to when the connection is back.
func (l *link) wakes() (wake chan struct{}, forget func()) {
	wake = make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiters[wake] = struct{}{}
	return wake, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.waiters, wake)
	}
}

func poke(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}

// once calls do with a ctx that ends when the connection breaks, and after callLimit.
func (l *link) once(ctx context.Context, do func(context.Context) error) error {
	l.mu.Lock()
	up := l.up
	l.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	select {
	case <-up:
	case <-limited.Done():
		return l.ended(ctx, errCut)
	}
	l.mu.Lock()
	present := l.present
	l.mu.Unlock()
	defer context.AfterFunc(present, cancel)()
	err := do(limited)
	if err == nil || backend.Final(err) || limited.Err() == nil {
		return err
	}
	if present.Err() != nil {
		return l.ended(ctx, errCut)
	}
	return l.ended(ctx, fmt.Errorf("no answer from NATS within %v", callLimit))
}

// ended returns ctx's error if that is why something ended, and err otherwise.
func (*link) ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// missing reports whether err says that there is no such stream.
func missing(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse)
}
