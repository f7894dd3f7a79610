package fencelock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	openMost  = 5 * time.Second         // how long Open may take to connect
	closeMost = 4800 * time.Millisecond // how long Close may take to release: 5 s with what follows

	// operateMost is how long the store may be silent in an operator's call without a deadline.
	operateMost = 10 * time.Second
	// listMost is the same of a List, which may have to search among other data for the next lock.
	listMost = 30 * time.Second
)

// Locker makes the mutexes of one backend, or of several where its driver is a backend.Router. Its
// methods may be called from many goroutines. It has a handful of goroutines however many leases
// there are, and a timer for each lease. Close it to release its leases and to end them.
type Locker struct {
	driver   backend.Driver
	routes   []*route // at least one
	traits   Traits   // of a backend.Router: the weakest of its routes
	set      settings // of the first route; what is the Locker's own is the same in all
	schedule schedule
	janitors []*janitor // one for each store
	events   events

	closing  atomic.Bool
	calls    atomic.Int64    // calls under way
	idle     chan struct{}   // of size 1: gets a value when the last call after Close is over
	waits    context.Context // ends when Close begins
	endWaits context.CancelFunc
	ctx      context.Context // ends when Close gives up waiting for the store
	cancel   context.CancelFunc
	released chan struct{} // closed when Close has ended every lease
	gone     chan struct{} // closed when Close is done

	mu     sync.Mutex
	lines  map[string]*line
	holds  []*hold        // in no order
	looks  []*looks       // one for each driver that is asked
	wants  map[*hold]bool // those that are held, and whose Wanted was called and is not closed
	sleeps sleeps

	wanting bool           // a look at them is planned or under way
	live    sync.WaitGroup // holds whose end is not dealt with yet
}

// Open connects to the backend that rawURL names and returns its Locker. The
// backend's package must be imported (backend/all imports every one).
//
// Every URL takes prefix= (the keyspace, default "fencelock:", may be empty), ttl= (as WithTTL) and
// the backend's own keys. Errors are *OpError: ErrUnavailable when the store does not answer within
// ctx or 5 s; ErrInvalid for a bad URL, key, option or scheme; ErrUnsupported when the backend
// falls short of Require or of an option; the error of ctx if that ended first. Nothing stays open
// then. A password in rawURL is never shown.
func Open(ctx context.Context, rawURL string, opts ...Option) (*Locker, error) {
	if ctx.Err() != nil {
		return nil, &OpError{Op: "open", Err: ctxError(ctx, false, nil)}
	}
	limited, cancel := context.WithTimeoutCause(ctx, openMost, noAnswer(openMost))
	defer cancel()
	var ttl time.Duration
	d, err := backend.Open(limited, rawURL, func(q *backend.Query) { ttl = q.Duration("ttl", 0) })
	if err != nil {
		scheme := ""
		if u, bad := backend.ParseURL(rawURL); bad == nil {
			scheme = u.Scheme
		}
		err = answered(own(context.Cause(limited), err))
		if errors.Is(err, ErrUnavailable) && over(ctx) {
			err = ctxError(ctx, false, err)
		}
		return nil, &OpError{Op: "open", Backend: scheme, Err: err}
	}
	if ttl > 0 {
		opts = append([]Option{WithTTL(ttl)}, opts...)
	}
	l, err := New(d, opts...)
	if err != nil {
		_ = d.Close() // the option's error is the one to report
		return nil, err
	}
	return l, nil
}

// New returns a Locker over a driver, which is the Locker's from then on: Close closes it. On an
// error d stays the caller's: ErrInvalid for a nil driver or a bad option, ErrUnsupported when the
// driver falls short of Require or of an option. It asks no server.
func New(d backend.Driver, opts ...Option) (*Locker, error) {
	if d == nil {
		return nil, &OpError{Op: "open", Err: backend.Invalid("the driver is nil")}
	}
	routes, err := routesOf(d, opts)
	if err != nil {
		return nil, err
	}
	l := &Locker{
		driver:   d,
		routes:   routes,
		traits:   d.Traits(),
		set:      routes[0].set,
		released: make(chan struct{}),
		gone:     make(chan struct{}),
		idle:     make(chan struct{}, 1),
		lines:    map[string]*line{},
		wants:    map[*hold]bool{},
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	l.waits, l.endWaits = context.WithCancel(l.ctx)
	l.schedule.l, l.events.l = l, l
	l.schedule.holds = pile[*hold]{
		before: func(a, b *hold) bool { return a.due.at.Before(b.due.at) },
		place:  func(h *hold) *int { return &h.due.index },
	}
	l.sleeps.l, l.sleeps.slept = l, slept
	for _, rt := range routes {
		if rt.janitor = routes[rt.lot].janitor; rt.janitor == nil {
			rt.janitor = newJanitor(l, rt.caller)
			l.janitors = append(l.janitors, rt.janitor)
		}
		if rt.looks != nil && rt.looks.l == nil {
			rt.looks.l = l
			rt.looks.dice.seed(core.Nonce(), 0)
			l.looks = append(l.looks, rt.looks)
		}
	}
	return l, nil
}

// Mutex returns the lock of this name, with opts over the Locker's own. It asks no server and never
// fails: a bad name (1 to 512 bytes of UTF-8 without NUL are allowed) or option is reported by Lock
// and TryLock as ErrInvalid or ErrUnsupported, and a Locker that is closed as ErrClosed.
func (l *Locker) Mutex(name string, opts ...Option) Mutex { return l.mutex(name, opts) }

func (l *Locker) mutex(name string, opts []Option) *mutex {
	m := &mutex{l: l, name: name, set: &l.set}
	if m.err = backend.CheckName(name); m.err != nil {
		return m
	}
	if m.route, m.err = l.route(name); m.err != nil {
		return m
	}
	if m.set = &m.route.set; len(opts) == 0 {
		return m
	}
	set := m.route.set
	set.ofMutex, set.needs = true, nil
	set, m.err = set.apply(m.route.traits, opts)
	m.set = &set
	return m
}

// Do locks name, calls fn with the lease and its context, and unlocks, also after a panic. It
// returns Lock's error, also ErrClosed; or fn's error as it is, joined with Unlock's if that
// failed. Unlock's ErrLost is left out if fn's error matches ErrLost.
//
// Writes of fn through the lease's own transaction (Traits.Transactional) commit only if fn returned nil
// before its context ended. An error of fn, a panic and an ended context roll them back. If fn returned
// nil all the same, Do returns the *UndoneError of Unlock, which wraps the cause. A Do that enters again
// (WithReentrancy) has the transaction of the outer one: if it fails, that is rolled back too.
func (l *Locker) Do(
	ctx context.Context, name string, fn func(context.Context, *Lease) error, opts ...Option,
) (err error) {
	le, err := l.Mutex(name, opts...).Lock(ctx)
	if err != nil {
		return err
	}
	held, cancel := le.Context(ctx)
	cause := errPanicked
	defer func() {
		if cause != nil {
			le.h.undo(cause)
		}
		cancel()
		panics := true
		defer func() {
			if panics { // the observer did, and nobody else can call Unlock
				le.discard(ErrReleased)
			}
		}()
		unlocked := le.Unlock(ctx)
		panics = false
		switch {
		case err == nil:
			err = unlocked
		case unlocked == nil, undone(unlocked): // fn's error has undone it
		case errors.Is(unlocked, ErrLost) && errors.Is(err, ErrLost): // fn says so already
		default:
			err = errors.Join(err, unlocked)
		}
	}()
	err = fn(held, le)
	if cause = err; cause == nil && held.Err() != nil {
		cause = ctxError(held, false, nil)
	}
	return err
}

// errPanicked is why what a function of Do wrote was rolled back.
var errPanicked = errors.New("the function that held the lock panicked")

// Inspect describes one name as the store sees it. A free lock is Held=false and no error. Where a
// process passes a lock on within itself, other processes see the token of the first of its
// holders.
//
// Errors: without a deadline of ctx a silent store gives ErrUnavailable within 10 s; a bad name, or what is no lock
// under its key, ErrInvalid; after Close ErrClosed.
func (l *Locker) Inspect(ctx context.Context, name string) (Info, error) {
	var info Info
	err := l.call(ctx, "inspect", name, func(ctx context.Context) (err error) {
		info, err = l.inspect(ctx, name)
		l.show(&info)
		return err
	})
	return info, err
}

// inspect asks the store of a valid name.
func (l *Locker) inspect(ctx context.Context, name string) (Info, error) {
	rt, err := l.route(name)
	if err != nil {
		return Info{}, err
	}
	return rt.caller.Inspect(ctx, name)
}

// Break frees a lock, whoever holds it: for operators. Its holder is told
// within Traits.Revoked. A lock that is free already is no error. Errors: as Inspect.
//
// A holder may pass the lock on within its process for a moment after the store granted it. So
// Break looks first, waits a tenth of a second while another process holds the lock, and looks
// again. If the lock changes hands all the time, Break goes on after a few looks. Then, and if readers
// come, the broken holder may still pass the lock on in its process for a few milliseconds: the next
// holder there has a lower token than the one that the store let in, and is told within Traits.Revoked.
func (l *Locker) Break(ctx context.Context, name string) error {
	return l.call(ctx, "break", name, func(ctx context.Context) error {
		if err := l.settle(ctx, name); err != nil {
			return err
		}
		rt, err := l.route(name)
		if err != nil {
			return err
		}
		mine := l.holdsOf(name)
		if err := rt.caller.Break(ctx, name); err != nil {
			return err
		}
		for _, h := range mine { // no need to wait for the store's push
			h.lost(ErrLost)
		}
		return nil
	})
}

// call does what is common to the operators' calls.
func (l *Locker) call(ctx context.Context, op, name string, do func(context.Context) error) error {
	err := backend.CheckName(name)
	if err == nil {
		err = l.during(ctx, operateMost, do)
	}
	return l.wrap(op, name, err)
}

// List yields every name that has this prefix and is held or waited for, in no order and not as of
// one moment. Foreign data is left out. List ends after the first error; a caller's loop that goes on
// holds up Close for up to 5 s.
//
// Errors: as Inspect, but ErrUnavailable after 30 s in which no further lock came, not counting the caller's loop. A
// store that must search longer among other data needs a ctx with a deadline.
func (l *Locker) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		err := backend.CheckPrefix(prefix)
		if err == nil {
			err = l.during(ctx, 0, func(ctx context.Context) error {
				for i, rt := range l.routes {
					if rt.lot != i { // its driver was asked already
						continue
					}
					if more, err := l.list(ctx, rt, prefix, yield); err != nil || !more {
						return err
					}
				}
				return nil
			})
		}
		if err != nil {
			yield(Info{}, &OpError{Op: "list", Backend: l.traits.Name, Name: prefix, Err: err})
		}
	}
}

// list yields the names in the store of one route; more: the caller's loop goes on. Names that the rules
// send elsewhere, as after a move, are left out.
func (l *Locker) list(
	ctx context.Context, rt *route, prefix string, yield func(Info, error) bool,
) (more bool, err error) {
	patience := listMost
	if _, bounded := ctx.Deadline(); bounded {
		patience = math.MaxInt64
	}
	// This is no deadline, of which a driver could make one for the whole List.
	heard, silent := context.WithCancelCause(ctx)
	defer silent(nil)
	timer := time.AfterFunc(patience, func() { silent(noAnswer(patience)) })
	defer timer.Stop()
	for info, err := range rt.caller.List(heard, prefix) {
		timer.Stop()
		if err != nil {
			if mine, ok := context.Cause(heard).(noAnswer); ok && !backend.Final(err) {
				err = mine
			}
			if rt.name != "" {
				err = fmt.Errorf("backend %q: %w", rt.name, err)
			}
			return false, err
		}
		if to, err := l.route(info.Name); err == nil && to.lot == rt.lot {
			l.show(&info)
			if !yield(info, nil) {
				return false, nil
			}
		}
		timer.Reset(patience)
	}
	return true, nil
}

// during runs do as a call that Close waits for and ends, and makes its error what users see. Where ctx has no
// deadline, it ends after most; 0: it has no such bound.
func (l *Locker) during(ctx context.Context, most time.Duration, do func(context.Context) error) error {
	if ctx.Err() != nil {
		return ctxError(ctx, false, nil)
	}
	if err := l.enter(); err != nil {
		return err
	}
	defer l.exit()
	limited := &core.Deadline{Context: ctx, Owner: l.waits}
	if _, bounded := ctx.Deadline(); !bounded && most > 0 {
		limited.At, limited.Why = time.Now().Add(most), noAnswer(most)
	}
	defer limited.End()
	err := do(limited)
	err = answered(own(limited.Cause(), err))
	switch {
	case err == nil:
		return nil
	case !backend.Final(err) && over(ctx):
		return ctxError(ctx, false, err)
	case errors.Is(limited.Cause(), ErrClosed):
		return ErrClosed
	}
	return err
}

// Traits returns what the backend promises; of a Locker that routes by name, what all its backends
// promise. It asks no server, and works after Close.
func (l *Locker) Traits() Traits { return l.traits }

// Close ends the Locker: new calls get ErrClosed, waiting Locks return it, every lease ends with
// ErrReleased and is then released (within 5 s in all, each even if another fails). A lease whose release
// the store does not confirm is lost with Reason Revoked. Writes through a lease's own transaction are
// rolled back, because its holder was not done, and the error says so. Close waits for the Locker's
// goroutines and closes the driver; a client that the caller gave to a driver stays open. The error joins
// what went wrong, of ten leases at most. A second Close waits for the first and returns nil.
func (l *Locker) Close() error {
	if l.closing.Swap(true) {
		<-l.gone
		return nil
	}
	defer close(l.gone)
	l.endWaits() // before the first release, which might grant a lock to one that waits

	// Whatever still waits for the store after this is ended.
	late := make(chan struct{})
	end := time.AfterFunc(closeMost, func() { l.cancel(); close(late) })
	defer end.Stop()
	err := l.releaseAll()
	for l.calls.Load() > 0 && l.ctx.Err() == nil {
		select {
		case <-l.idle:
		case <-l.ctx.Done():
		}
	}
	err = errors.Join(err, l.releaseAll()) // what was granted meanwhile
	close(l.released)
	l.live.Wait()
	l.schedule.stop()
	var clean sync.WaitGroup
	for _, j := range l.janitors {
		clean.Go(j.close)
	}
	clean.Wait()
	l.cancel()
	l.schedule.flying.Wait()
	err = errors.Join(err, l.events.close(late))
	for _, rt := range l.routes {
		rt.caller.Settle()
	}
	if cerr := l.driver.Close(); cerr != nil {
		err = errors.Join(err, fmt.Errorf("closing the driver: %w", cerr))
	}
	for _, rt := range l.routes {
		rt.caller.Land()
	}
	return l.wrap("close", "", err)
}

// releaseAll releases every lease that is left, many at once.
func (l *Locker) releaseAll() error {
	l.mu.Lock()
	left := slices.Clone(l.holds)
	l.mu.Unlock()
	errs := make([]error, len(left))
	atOnce(len(left), func(i int) {
		if err := left[i].close(l.ctx); err != nil {
			errs[i] = fmt.Errorf("releasing %q: %w", left[i].Name, err)
		}
	})
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if most := 10; len(errs) > most {
		errs = append(errs[:most], fmt.Errorf("and %d more", len(errs)-most))
	}
	return errors.Join(errs...)
}

// enter counts a call in; ErrClosed after Close.
func (l *Locker) enter() error {
	l.calls.Add(1)
	if l.closing.Load() {
		l.exit()
		return ErrClosed
	}
	return nil
}

// exit counts it out.
func (l *Locker) exit() {
	if l.calls.Add(-1) == 0 && l.closing.Load() {
		select {
		case l.idle <- struct{}{}:
		default:
		}
	}
}

// remember takes a new hold in, for Close and Break. p is the place in line of the caller that has
// got it, which gives its turn to the next one; nil if it has none, or leaves by itself.
func (l *Locker) remember(h *hold, p *place) {
	l.live.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holds = append(l.holds, h)
	h.place = len(l.holds)
	if k := h.route.looks; k != nil {
		k.armLocked()
	}
	l.sleeps.armLocked()
	q := l.lineLocked(h.Name)
	q.holder = h
	if p != nil {
		l.nextLocked(h.Name, q)
	}
}

// forget lets it go.
func (l *Locker) forget(h *hold) {
	l.mu.Lock()
	last := l.holds[len(l.holds)-1]
	l.holds[h.place-1], last.place = last, h.place
	l.holds[len(l.holds)-1] = nil
	l.holds = l.holds[:len(l.holds)-1]
	delete(l.wants, h)
	if q := l.lines[h.Name]; q != nil && q.holder == h { // else there is a later one, or was
		q.holder = nil
		l.forgetLineLocked(h.Name, q)
	}
	l.mu.Unlock()
	l.live.Done()
}

func (l *Locker) holdsOf(name string) []*hold {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []*hold
	for _, h := range l.holds {
		if h.Name == name {
			hs = append(hs, h)
		}
	}
	return hs
}

// wrap makes the one *OpError of an error.
func (l *Locker) wrap(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &OpError{Op: op, Backend: l.backendOf(name), Name: name, Err: err}
}
