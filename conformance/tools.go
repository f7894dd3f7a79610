package conformance

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// The modes of a sound link, of one that lets no reply through, and of a dead one.
var (
	passAll     = faultproxy.Mode{}
	holdReplies = faultproxy.Mode{HoldReplies: true}
	blackHole   = faultproxy.BlackHole
)

// failed is the value of check's panic. A rule that fails stops there.
type failed struct{ err error }

// check ends the rule with err, unless that is nil. Another goroutine than the rule's calls it only inside stopped.
func check(err error) {
	if err != nil {
		panic(failed{err})
	}
}

// must is check for a call with a result, and must2 for one with two.
func must[T any](v T, err error) T {
	check(err)
	return v
}

func must2[T, U any](v T, w U, err error) (T, U) {
	check(err)
	return v, w
}

// stopping returns f, which returns the error that check ends it with.
func stopping(f func(context.Context, *Env) error) func(context.Context, *Env) error {
	return func(ctx context.Context, e *Env) error { return stopped(func() error { return f(ctx, e) }) }
}

// stopped returns what f returns, or the error that check ends it with.
func stopped(f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case failed:
			err = r.err
		default:
			panic(r)
		}
	}()
	return f()
}

// part is check for a part of a rule, which is named in the error.
func part(what string, f func() error) {
	if err := stopped(f); err != nil {
		check(fmt.Errorf("%s: %w", what, err))
	}
}

// running runs a part of the rule on a goroutine of its own, and returns the channel on which its error comes.
func running(f func() error) <-chan error {
	ch := make(chan error, 1)
	go func() { ch <- stopped(f) }()
	return ch
}

// together runs n parts of the rule at once, and joins their errors.
func together(n int, do func(i int) error) error {
	all := make([]<-chan error, n)
	for i := range all {
		all[i] = running(func() error { return do(i) })
	}
	errs := make([]error, n)
	for i, ch := range all {
		errs[i] = <-ch
	}
	return errors.Join(errs...)
}

func nonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// locks is a method such as Lock, TryRLock or Acquire.
type locks = func(context.Context) (*fencelock.Lease, error)

// take calls a method that must return a lease.
func take(ctx context.Context, lock locks, what string) (*fencelock.Lease, error) {
	le, err := lock(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: got %w, want a lease", what, err)
	}
	return le, nil
}

// refused calls a method that must return ErrLocked.
func refused(ctx context.Context, lock locks, what string) error {
	le, err := lock(ctx)
	if err == nil {
		_ = le.Unlock(ctx)
		return fmt.Errorf("%s: got a lease (%v, token %d), want %w", what, le.Mode(), le.Token(), fencelock.ErrLocked)
	}
	return want(err, fencelock.ErrLocked, what)
}

// permits is how many of a name a rule asks for that is checked in each mode.
const permits = 3

// limitOf is Request.Limit of a mode.
func limitOf(m backend.Mode) int {
	if m == backend.Permit {
		return permits
	}
	return 0
}

// methods are the ways to a hold of a mode: one that waits, and its try.
func methods(m backend.Mode, l *fencelock.Locker, name string, opts ...fencelock.Option) (lock, try locks) {
	switch m {
	case backend.Reader:
		rw := l.RWMutex(name, opts...)
		return rw.RLock, rw.TryRLock
	case backend.Permit:
		s := l.Semaphore(name, permits, opts...)
		return s.Acquire, s.TryAcquire
	}
	x := l.Mutex(name, opts...)
	return x.Lock, x.TryLock
}

// try is take of a try in the mode of e.
func (e *Env) try(
	ctx context.Context, l *fencelock.Locker, name, when string, opts ...fencelock.Option,
) (*fencelock.Lease, error) {
	_, try := methods(e.mode, l, name, opts...)
	return take(ctx, try, when+": a try")
}

// locking is calling of a Lock in the mode of e.
func (e *Env) locking(ctx context.Context, l *fencelock.Locker, name string, opts ...fencelock.Option) <-chan result {
	lock, _ := methods(e.mode, l, name, opts...)
	return calling(ctx, lock)
}

// shown returns an error unless Inspect by another client shows the hold of a lease that holds its name alone.
func shown(ctx context.Context, l *fencelock.Locker, le *fencelock.Lease, when string) error {
	info, err := l.Inspect(ctx, le.Name())
	if err != nil || !info.Held || info.Name != le.Name() || info.Mode != le.Mode() || info.Token != le.Token() ||
		info.Owner != le.Owner() {
		return fmt.Errorf("Inspect of %.40q, %s: got %+v, %v; want it held by %q, %v, with token %d",
			le.Name(), when, info, err, le.Owner(), le.Mode(), le.Token())
	}
	if info.Leaked || info.ExpiresIn < 0 || info.ExpiresIn > 2*ample { // a server may grant more than was asked for
		return fmt.Errorf("Inspect of %.40q, %s: got %+v; want it to expire within its TTL, %v",
			le.Name(), when, info, ample)
	}
	return nil
}

// try is take of a TryLock.
func try(
	ctx context.Context, l *fencelock.Locker, name, when string, opts ...fencelock.Option,
) (*fencelock.Lease, error) {
	return take(ctx, l.Mutex(name, opts...).TryLock, when+": TryLock")
}

// held is refused of a TryLock by another client than the holder.
func held(ctx context.Context, l *fencelock.Locker, name, when string) error {
	return refused(ctx, l.Mutex(name).TryLock, when+": TryLock of another client")
}

// want returns an error unless got matches target.
func want(got, target error, what string) error {
	if errors.Is(got, target) {
		return nil
	}
	if target == nil {
		return fmt.Errorf("%s: got %w, want no error", what, got)
	}
	return fmt.Errorf("%s: got %v, want one that matches %q", what, got, target)
}

// live returns an error unless the lease is held.
func live(le *fencelock.Lease, what string) error {
	if err := le.Err(); err != nil {
		return fmt.Errorf("%s: got %w, want the lease held", what, err)
	}
	return nil
}

// unlock returns an error unless Unlock returns nil.
func unlock(ctx context.Context, le *fencelock.Lease, when string) error {
	return want(le.Unlock(ctx), nil, when+": Unlock")
}

// acquire returns the hold of an Acquire at the driver, which must be granted.
func acquire(ctx context.Context, d core.Caller, r *backend.Request, who string) (*core.Hold, error) {
	g, err := d.Acquire(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("Acquire by %s: got %w, want a grant", who, err)
	}
	return &core.Hold{Request: r, Grant: g}, nil
}

// release returns an error unless Release at the driver returns nil.
func release(ctx context.Context, d core.Caller, h *core.Hold, who string) error {
	return want(d.Release(ctx, h), nil, "Release by "+who)
}

// cycle locks and unlocks.
func cycle(ctx context.Context, l *fencelock.Locker, name, when string) (fencelock.Token, error) {
	le, err := l.Mutex(name).Lock(ctx)
	if err != nil {
		return 0, fmt.Errorf("%s: Lock: got %w, want a lease", when, err)
	}
	return le.Token(), unlock(ctx, le, when)
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// stood returns for how long the machine has stood still, as a timer shows that was due at a moment and has fired.
func stood(due time.Time) time.Duration {
	late := time.Since(due)
	if late < 10*time.Millisecond {
		return 0
	}
	return late
}

// until calls ok every few milliseconds until it is true, or most has passed. The time is added for which the machine
// stands still meanwhile.
func until(ctx context.Context, most time.Duration, what string, ok func() (bool, error)) error {
	for end := time.Now().Add(most); ; {
		over := time.Now().After(end)
		yes, err := ok()
		switch {
		case err != nil || yes:
			return err
		case over:
			return fmt.Errorf("not within %v: %s", most, what)
		}
		due := time.Now().Add(5 * time.Millisecond)
		if err := sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		end = end.Add(stood(due))
	}
}

// comes returns what comes on ch within most. The time is added for which the machine stands still meanwhile.
func comes[T any](ctx context.Context, ch <-chan T, most time.Duration) (got T, in bool, err error) {
	for left := max(most, 0); ; {
		due := time.Now().Add(left)
		select {
		case got = <-ch:
			return got, true, nil
		case <-time.After(left):
		case <-ctx.Done():
			return got, false, ctx.Err()
		}
		if left = stood(due); left == 0 {
			break
		}
	}
	select {
	case got = <-ch:
		return got, true, nil
	default:
		return got, false, nil
	}
}

// ended waits until the lease has ended, at most so long, and returns when it saw it.
func ended(ctx context.Context, le *fencelock.Lease, most time.Duration) (time.Time, error) {
	_, in, err := comes(ctx, le.Done(), most)
	if !in && err == nil {
		err = fmt.Errorf("the holder was not told within %v (its deadline is %v away)", most, time.Until(le.Deadline()))
	}
	return time.Now(), err
}

// learns waits until the holder of a lock that was taken away learns of it: for as long as the backend promises, and
// by a renewal where it promises nothing.
func (e *Env) learns(ctx context.Context, le *fencelock.Lease) error {
	if e.traits.Revoked == 0 {
		return want(le.Renew(ctx), fencelock.ErrLost, "Renew of what was taken away")
	}
	_, err := ended(ctx, le, e.traits.Revoked+e.Slack())
	return err
}

// lostBy returns an error unless the lease was lost, by one of reasons if there are any.
func lostBy(le *fencelock.Lease, when string, reasons ...fencelock.Reason) error {
	var lost *fencelock.LostError
	if err := le.Err(); !errors.As(err, &lost) {
		return fmt.Errorf("%s: Err: got %v, want a *LostError", when, err)
	}
	if len(reasons) > 0 && !slices.Contains(reasons, lost.Reason) {
		return fmt.Errorf("%s: lost with reason %q, want %q", when, lost.Reason, reasons)
	}
	return nil
}

// result is what a Lock on a goroutine of its own has returned, and when.
type result struct {
	lease *fencelock.Lease
	err   error
	at    time.Time
}

// locking starts a Lock on a goroutine of its own.
func locking(ctx context.Context, l *fencelock.Locker, name string, opts ...fencelock.Option) <-chan result {
	return calling(ctx, l.Mutex(name, opts...).Lock)
}

// calling starts a call such as Lock, RLock or Acquire on a goroutine of its own.
func calling(ctx context.Context, lock locks) <-chan result {
	ch := make(chan result, 1)
	go func() {
		le, err := lock(ctx)
		ch <- result{le, err, time.Now()}
	}()
	return ch
}

// merged returns a channel on which the results of all come.
func merged(all ...<-chan result) <-chan result {
	ch := make(chan result, len(all))
	for _, one := range all {
		go func() { ch <- <-one }()
	}
	return ch
}

// freeFor is for until: l locks and unlocks the name by TryLock.
func freeFor(ctx context.Context, l *fencelock.Locker, name string) func() (bool, error) {
	return func() (bool, error) {
		le, err := l.Mutex(name).TryLock(ctx)
		if errors.Is(err, fencelock.ErrLocked) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, le.Unlock(ctx)
	}
}

// waiting waits until the store knows n waiting processes for the name, as far as it can tell.
func waiting(ctx context.Context, l *fencelock.Locker, name string, n int) error {
	return until(ctx, ample/2, fmt.Sprintf("%d waiters in the store", n), func() (bool, error) {
		info, err := l.Inspect(ctx, name)
		return err == nil && (info.Waiters >= n || info.Waiters < 0), err
	})
}

// granted waits for a locking's lease.
func granted(ctx context.Context, ch <-chan result, most time.Duration, who string) (result, error) {
	r, in, err := comes(ctx, ch, most)
	switch {
	case err != nil:
		return r, err
	case !in:
		return r, fmt.Errorf("%s: not granted within %v", who, most)
	case r.err != nil:
		return r, fmt.Errorf("%s: Lock: got %w, want a lease", who, r.err)
	}
	return r, nil
}

// turn is granted for a lease that is unlocked at once.
func turn(ctx context.Context, ch <-chan result, most time.Duration, who string) error {
	r, err := granted(ctx, ch, most, who)
	if err != nil {
		return err
	}
	return unlock(ctx, r.lease, who)
}
