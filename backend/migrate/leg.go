package migrate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// leg is the part of an acquisition that is made in one store.
type leg struct {
	caller core.Caller
	req    backend.Request
	hold   core.Hold
	asked  backend.Instant // of the last request that set the store's expiry
	stands bool            // the store may have something of it

	mu   sync.Mutex
	tell func(error) // where a loss is reported to; nil while the other leg is awaited
	lost error       // what came before that
	gone chan struct{}
}

// newLeg makes the request to one store of what r asks of both.
func newLeg(caller core.Caller, r *backend.Request, move string, phase backend.Phase, nonce string) *leg {
	l := &leg{caller: caller, req: *r, gone: make(chan struct{})}
	l.req.Move, l.req.Phase, l.req.Nonce, l.req.Lost, l.req.Claim = move, phase, nonce, l.isLost, nil
	return l
}

// isLost is the leg's Request.Lost.
func (l *leg) isLost(err error) {
	l.mu.Lock()
	tell := l.tell
	if tell == nil && l.lost == nil {
		l.lost = err
		close(l.gone)
	}
	l.mu.Unlock()
	if tell != nil {
		tell(err)
	}
}

// hand makes tell the receiver of losses, and returns one that came before.
func (l *leg) hand(tell func(error)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost == nil {
		l.tell = tell
	}
	return l.lost
}

// acquire asks the leg's store.
func (l *leg) acquire(ctx context.Context) error {
	l.asked = backend.Now()
	g, err := l.caller.Acquire(ctx, &l.req)
	if err != nil {
		return err
	}
	if !g.Asked.IsZero() {
		l.asked = g.Asked
	}
	l.hold = core.Hold{Request: &l.req, Grant: g}
	return nil
}

// span is how long after asked the store keeps the leg for sure. No store makes a short grant to a part of a migration.
func (l *leg) span() time.Duration {
	if l.hold.Max > 0 {
		return min(l.hold.Max, l.req.TTL)
	}
	return l.req.TTL
}

// trusted is span without the margin that the engine takes off: the leg is renewed within it or given up.
func (l *leg) trusted() time.Duration {
	return l.span() - max(20*time.Millisecond, l.req.TTL/50, l.caller.Traits().Margin)
}

// abandon gives the leg up. Where the store may have something of it, a refusal is not the end: the rights may come
// back.
func (l *leg) abandon(ctx context.Context) error {
	l.stands = l.stands || core.Stands(&l.req)
	err := l.caller.Abandon(ctx, &l.req)
	switch {
	case errors.Is(err, backend.ErrLost):
		return nil
	case l.stands && errors.Is(err, backend.ErrInvalid):
		return backend.Unavailable(errors.New(err.Error()))
	}
	return err
}

// renew renews the leg once.
func (l *leg) renew(ctx context.Context) error {
	at := backend.Now()
	err := l.caller.Renew(ctx, []*core.Hold{&l.hold})[0]
	if err == nil {
		l.asked = at
	}
	return err
}

// keep renews the leg until ctx ends or the leg is lost: by the store's word, or when no renewal has come through in
// time.
func (l *leg) keep(ctx context.Context) {
	every := l.req.TTL / 3
	timer := time.NewTimer(every - l.asked.Elapsed())
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.gone:
			return
		case <-timer.C:
		}
		left := l.trusted() - l.asked.Elapsed()
		if left <= 0 {
			l.isLost(&backend.LostError{Reason: backend.Expired})
			return
		}
		limited, cancel := context.WithTimeout(ctx, min(left, every))
		err := l.renew(limited)
		cancel()
		switch {
		case err == nil:
			timer.Reset(every)
		case ctx.Err() == nil && backend.Final(err):
			l.isLost(err)
			return
		default:
			timer.Reset(min(every/4, max(left, time.Millisecond)))
		}
	}
}

// legs is what a migration has made of a request, kept in its Claim and as its hold's handle: its stores know an
// acquisition by the request that they were given.
type legs struct {
	d    *member
	from *leg // the only one in a phase with one store
	to   *leg
}

// legsFor returns the legs of a request, also those that have ended, which an Abandon needs. It makes them if there are
// none.
func (d *member) legsFor(r *backend.Request) *legs {
	if l, ok := r.Claim.(*legs); ok && l.d == d {
		return l
	}
	nonce := r.Nonce
	l := &legs{d: d, from: newLeg(d.sides[0], r, d.move, d.phase, nonce)}
	if d.spare != nil {
		l.from.tell = r.Lost
	} else {
		l.to = newLeg(d.sides[1], r, d.move, d.phase, nonce[1:]+nonce[:1]) // another: a server may be in both stores
	}
	r.Claim = l
	return l
}

// Handle is what users see as the lease's handle: the new store's, if there is one. In phase
// both a transaction is none: it would commit with its own store's release, also where the other
// store's leg was lost and Unlock is ErrLost.
func (l *legs) Handle() any {
	if l.to == nil {
		return l.from.hold.Handle
	}
	for _, leg := range []*leg{l.to, l.from} {
		if leg.hold.Handle != nil && !leg.caller.Traits().Transactional {
			return leg.hold.Handle
		}
	}
	return nil
}
