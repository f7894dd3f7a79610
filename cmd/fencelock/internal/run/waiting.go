package run

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// quietFor is how long run waits before it prints that it waits: most locks are free sooner.
const quietFor = 500 * time.Millisecond

// waitLock waits for the lock, and tells the user its holder.
func waitLock(
	ctx context.Context, a *cli.App, locks *fencelock.Locker, name string,
	lock func(context.Context) (*fencelock.Lease, error), tells bool,
) (*fencelock.Lease, error) {
	looking, stop := context.WithCancel(ctx)
	var told sync.WaitGroup
	if tells {
		told.Go(func() { tellWho(looking, a, locks, name) })
	}
	lease, err := lock(ctx)
	stop()
	told.Wait()
	return lease, err
}

// tellWho prints the holder of the lock once, if the wait is not short.
func tellWho(ctx context.Context, a *cli.App, locks *fencelock.Locker, name string) {
	select {
	case <-time.After(quietFor):
	case <-ctx.Done():
		return
	}
	info, err := locks.Inspect(ctx, name)
	switch {
	case ctx.Err() != nil:
	case a.JSON: // after an error the Info is empty
		a.PrintErr(Event{
			At: time.Now(), Event: "waiting", Name: name, Token: info.Token, Owner: info.Owner,
		})
	case err != nil:
		fmt.Fprintf(a.Err, "fencelock: waiting for %s; who holds it is not known: %s\n",
			cli.Name(name), cli.Scrub(err.Error()))
	case info.Held:
		fmt.Fprintf(a.Err, "fencelock: waiting for %s, which is held by %s\n",
			cli.Name(name), who(info))
	default:
		fmt.Fprintf(a.Err, "fencelock: waiting for %s\n", cli.Name(name))
	}
}

// who describes a holder in a sentence.
func who(i fencelock.Info) string {
	s := "a holder without a name"
	if i.Owner != "" || i.Holders > 1 {
		s = cli.Owner(i)
	}
	if i.ExpiresIn > 0 {
		s += fmt.Sprintf(" (for %v unless it renews)", i.ExpiresIn.Round(100*time.Millisecond))
	}
	return s
}

// holderOf describes the holder of a lock that was not obtained. ctx may have ended.
func holderOf(ctx context.Context, locks *fencelock.Locker, name string) string {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cli.OpenMost)
	defer cancel()
	info, err := locks.Inspect(ctx, name)
	switch {
	case err != nil:
		return "who holds it is not known"
	case info.Held:
		return "held by " + who(info)
	}
	return "it was free a moment later"
}

// renewals remembers why the last renewal failed.
type renewals struct {
	mu  sync.Mutex
	err error
}

// Observe implements fencelock.Observer.
func (r *renewals) Observe(_ context.Context, e fencelock.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind {
	case fencelock.RenewFailed:
		if !errors.Is(e.Err, fencelock.ErrLost) { // which says no more than the loss itself
			r.err = e.Err
		}
	case fencelock.Renewed:
		r.err = nil
	}
}

// why returns the error of the last renewal in brackets, if that is the cause of the loss.
func (r *renewals) why(lost *fencelock.LostError) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil || lost.Reason != fencelock.Expired {
		return ""
	}
	return fmt.Sprintf(" (no renewal came through: %s)", r.err)
}
