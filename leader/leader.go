// Package leader elects one of many processes and lets it lead, term after term. It is a loop
// around a Mutex: the holder of the lock leads, the others wait in its queue.
//
//	err := leader.Run(ctx, locks.Mutex("scheduler"), leader.Callbacks{
//		Lead: func(ctx context.Context, lease *fencelock.Lease) error {
//			return schedule(ctx, lease.Token()) // until ctx ends
//		},
//	})
//
// Each term has a greater token than every earlier one, and no two leases of one name overlap as long
// as the store keeps its data and its time. If it does not, as Redis in a failover, two may lead:
// docs/guarantees.md has the faults of each store. It is not guaranteed that Lead has stopped when its
// lease ends. Lead must stop when its ctx ends; until it has, two may lead, and only a resource that
// checks the token tells them apart (package fence). Callbacks.Late sees such a Lead.
//
// A term is a long hold. In PostgreSQL it belongs in mode=lease: in the other modes the lock ends with its
// connection, and the next leader may be granted it a moment before this one is told; in mode=row the leader's
// transaction holds back vacuum in the whole database for as long as the term lasts, and in mode=advisory the
// statement of the process that waits to be the next one does.
package leader

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// The pause between two terms, or after an error: least at first, twice as long each time up to
// most, and jittered down to half. It is least again after a term longer than most.
const (
	least = 100 * time.Millisecond
	most  = 10 * time.Second
)

// lateEvery is how often Late is called.
const lateEvery = time.Second

// Callbacks are what a candidate does. Only Lead must be set.
type Callbacks struct {
	// Lead leads. Run calls it on its own goroutine for each term, never twice at once, with the
	// lease of the term and the lease's ctx, which ends when the lease does and when Run's ctx
	// does. It must return then. While it runs, the lease is renewed (unless the Mutex has
	// WithManualRenew). Its return ends the term: the lock is released, another candidate has its
	// turn, and this one stands again after a pause. After a panic the lock is released too; the
	// panic is the program's. Writes of Lead through the lease's own transaction are rolled back
	// after a panic, and after an error unless that says that ctx has ended.
	Lead func(ctx context.Context, lease *fencelock.Lease) error

	// Lost is called once for each term that a loss ended, at the time of the loss, on another
	// goroutine than Lead, which may still be running; where only the unlock tells of it, after
	// Lead. err matches fencelock.ErrLost, or fencelock.ErrReleased if Lead unlocked it or the
	// Locker was closed. Run waits for it.
	Lost func(lease *fencelock.Lease, err error)

	// Late is called every second for as long as Lead goes on after its lease has ended, with how
	// long that has been: by then another may lead. Run does not stand again before Lead has
	// returned. A Lead that cannot be stopped otherwise is stopped here, with os.Exit. On the
	// goroutine of Lost.
	Late func(lease *fencelock.Lease, late time.Duration)

	// Failed is called on Run's goroutine with the error of a term (Lead's, or that of releasing
	// the lock) or of an election that could not be held, before the pause. Run goes on.
	Failed func(err error)
}

// Run stands for election until ctx ends, and leads whenever it is elected. It returns
// context.Cause(ctx), after Lead has returned and the lock has been released; or before that an
// error that trying again cannot mend: fencelock.ErrInvalid, ErrUnsupported, ErrDeadlock,
// ErrClosed. Many may run at once, in one process too, also of one Mutex.
//
// A store that is out is no reason to return: the error goes to Failed, and Run tries again after a
// pause of 0.1 s at first, and later of up to 10 s.
func Run(ctx context.Context, m fencelock.Mutex, c Callbacks) error {
	if c.Lead == nil {
		return fmt.Errorf("leader: %w: Callbacks.Lead is nil", fencelock.ErrInvalid)
	}
	for pause := least; ; pause = min(2*pause, most) {
		lease, err := m.Lock(ctx)
		switch {
		case ctx.Err() != nil && err != nil:
			return context.Cause(ctx)
		case hopeless(err):
			return err
		case err == nil:
			began := time.Now()
			err = c.term(ctx, lease)
			if time.Since(began) > most {
				pause = least
			}
		}
		if err != nil && c.Failed != nil {
			c.Failed(err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause/2 + rand.N(pause/2)):
		}
	}
}

// hopeless reports whether an error of Lock comes again each time.
func hopeless(err error) bool {
	return errors.Is(err, fencelock.ErrInvalid) || errors.Is(err, fencelock.ErrUnsupported) ||
		errors.Is(err, fencelock.ErrDeadlock) || errors.Is(err, fencelock.ErrClosed)
}

// term leads until Lead returns. A loss is Lost's, not an error.
func (c *Callbacks) term(ctx context.Context, lease *fencelock.Lease) (err error) {
	held, cancel := lease.Context(ctx)
	returned, watched := make(chan struct{}), make(chan struct{})
	told, cause := false, errPanicked
	go func() {
		defer close(watched)
		c.watch(lease, returned, &told)
	}()
	defer func() {
		close(returned)
		<-watched
		cancel()
		if cause != nil { // a lease whose handle was asked for is not passed on inside the process
			if x, ok := lease.Handle().(backend.Undoer); ok {
				x.Undo(cause)
			}
		}
		switch unlock := lease.Unlock(ctx); {
		case cause != nil && errors.As(unlock, new(*fencelock.UndoneError)): // by that
		case errors.Is(unlock, fencelock.ErrReleased):
		case !errors.Is(unlock, fencelock.ErrLost):
			err = errors.Join(err, unlock)
		case !told && c.Lost != nil: // nobody had told us yet
			c.Lost(lease, unlock)
		}
	}()
	err = c.Lead(held, lease)
	if end := context.Cause(held); end != nil && (errors.Is(err, end) || errors.Is(err, held.Err())) {
		err = nil // it says that it was ended
	}
	cause = err
	return err
}

// errPanicked is why what Lead wrote was rolled back.
var errPanicked = errors.New("the callback Lead panicked")

// watch waits for the end of the lease or of Lead. told: it was the lease's, and Lost has it.
func (c *Callbacks) watch(lease *fencelock.Lease, returned <-chan struct{}, told *bool) {
	select {
	case <-lease.Done():
	case <-returned:
	}
	end := lease.Err()
	if end == nil {
		return
	}
	*told = true
	lost := time.Now()
	if c.Lost != nil {
		c.Lost(lease, end)
	}
	tick := time.Tick(lateEvery)
	for {
		select {
		case <-returned:
			return
		case now := <-tick:
			if c.Late != nil {
				c.Late(lease, now.Sub(lost))
			}
		}
	}
}
