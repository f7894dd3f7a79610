package measure

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// Pair tells series apart.
type Pair struct{ Backend, Resource string }

// Leaks knows how many leaked locks the Lockers under watch listed last.
type Leaks struct {
	groups *Groups

	mu      sync.Mutex
	watches map[*watch]struct{}
	ok      map[string]int64 // listings by backend
	failed  map[string]int64
}

// watch is one Locker under watch.
type watch struct {
	backend string
	leaked  map[string]int64 // by resource; nil before the first listing
}

// NewLeaks watches nothing yet.
func NewLeaks(groups *Groups) *Leaks {
	return &Leaks{groups: groups, watches: map[*watch]struct{}{}, ok: map[string]int64{}, failed: map[string]int64{}}
}

// Watch lists l's locks at once and then every so often, and remembers how many have leaked, until
// ctx ends or l is closed. It returns ctx's cause or the error that ends it; what it remembered is
// gone then. A listing that fails is counted, and the numbers stay as they were.
func (k *Leaks) Watch(ctx context.Context, l *fencelock.Locker, prefix string, every time.Duration) error {
	if every <= 0 {
		return backend.Invalid("watching every %v: want more than 0", every)
	}
	w := &watch{backend: l.Traits().Name}
	k.mu.Lock()
	k.watches[w] = struct{}{}
	k.ok[w.backend] += 0
	k.failed[w.backend] += 0
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.watches, w)
	}()
	again := time.Tick(every)
	for {
		err := k.list(ctx, l, w, prefix, every)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, fencelock.ErrClosed) || errors.Is(err, fencelock.ErrInvalid) ||
			errors.Is(err, fencelock.ErrUnsupported) {
			return err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// list lists once, for no longer than until the next time.
func (k *Leaks) list(ctx context.Context, l *fencelock.Locker, w *watch, prefix string, most time.Duration) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	leaked := map[string]int64{Other: 0}
	var err error
	for info, e := range l.List(limited, prefix) {
		if err = e; err != nil {
			break
		}
		r := k.groups.Of(info.Name)
		leaked[r] += 0 // a resource that is known has a number, so that it can be seen to go down
		if info.Leaked {
			leaked[r]++
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		k.failed[w.backend]++
		return err
	}
	k.ok[w.backend]++
	w.leaked = leaked
	return nil
}

// Leaked returns the number of leaked locks as listed last.
func (k *Leaks) Leaked() map[Pair]int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	sum := map[Pair]int64{}
	for w := range k.watches {
		for r, n := range w.leaked {
			sum[Pair{w.backend, r}] += n
		}
	}
	return sum
}

// Listings calls f with the number of listings of each backend that was ever watched.
func (k *Leaks) Listings(f func(backend string, ok, failed int64)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for b := range k.ok {
		f(b, k.ok[b], k.failed[b])
	}
}
