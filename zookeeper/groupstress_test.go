package zookeeper_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// crowd is who holds a name, as its holders see it.
type crowd struct {
	mu     sync.Mutex
	now    [3]int // by mode
	all    [3]int
	era    fencelock.Token            // of the readers that are in
	newest map[string]fencelock.Token // of each slot, and of writers
	last   fencelock.Token            // of a writer
}

// enter counts a holder in, and returns what is wrong.
func (c *crowd) enter(le *fencelock.Lease) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	mode := le.Mode()
	c.now[mode]++
	c.all[mode]++
	writers, readers, permits := c.now[backend.Exclusive], c.now[backend.Reader], c.now[backend.Permit]
	switch {
	case writers > 1 || permits > 2 || writers > 0 && readers+permits > 0 || readers > 0 && permits > 0:
		return fmt.Errorf("a %v beside %d writers, %d readers and %d permits", mode, writers, readers, permits)
	case mode == backend.Reader && readers > 1 && c.era != le.Token():
		return fmt.Errorf("a reader with token %d beside %d", le.Token(), c.era)
	case le.Token() <= c.last:
		return fmt.Errorf("a %v with token %d after a writer with %d", mode, le.Token(), c.last)
	case mode == backend.Reader:
		c.era = le.Token()
		return nil
	}
	if mode == backend.Exclusive {
		c.last = le.Token()
	}
	at := fmt.Sprint(mode, le.Slot())
	if last := c.newest[at]; last >= le.Token() {
		return fmt.Errorf("%s: token %d after %d", at, le.Token(), last)
	}
	c.newest[at] = le.Token()
	return nil
}

func (c *crowd) leave(le *fencelock.Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now[le.Mode()]--
}

// full reports whether holders of every mode were in.
func (c *crowd) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.Contains(c.all[:], 0)
}

// Readers, writers and permits of several processes, some of which give up or lose their connections, for one
// name. Nobody holds beside whom he must not, readers have one token, tokens never go back, and in the end
// nothing is left.
func TestGroupsUnderStress(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	in := &crowd{newest: map[string]fencelock.Token{}}
	long := 6 * time.Second
	if testing.Short() {
		long = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*long)
	defer cancel()
	began := time.Now()
	var wg sync.WaitGroup
	for i := range 8 {
		at := z.URL()
		if i%4 == 3 {
			at = url
		}
		l := open(t, at)
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 5))
			for ctx.Err() == nil {
				patience, give := context.WithTimeout(ctx, time.Duration(2+random.IntN(300))*time.Millisecond)
				rw, sem := l.RWMutex("x"), l.Semaphore("x", 2)
				take := []locks{
					rw.Lock, rw.TryLock, rw.RLock, rw.RLock, rw.TryRLock, sem.Acquire, sem.Acquire, sem.TryAcquire,
				}
				le, err := take[random.IntN(len(take))](patience)
				give()
				if err != nil {
					continue
				}
				if err := in.enter(le); err != nil && le.Err() == nil {
					t.Error(err)
				}
				<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
				in.leave(le)
				_ = le.Unlock(context.WithoutCancel(ctx))
			}
		})
	}
	for ctx.Err() == nil && (time.Since(began) < long || !in.full()) {
		<-time.After(150 * time.Millisecond)
		p.Cut()
	}
	cancel()
	wg.Wait()
	t.Logf("%d writers, %d readers, %d permits", in.all[0], in.all[1], in.all[2])
	for mode, n := range in.all {
		if n == 0 {
			t.Errorf("nobody got in as %v", backend.Mode(mode))
		}
	}
	awaitClean(t, c, 20*time.Second)
}
