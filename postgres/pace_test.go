package postgres

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Where a network drops what would begin a connection, few are begun at once, and then one after the other: one of
// them soon after the network is back, whenever that is, although others wait yet for what was dropped. When nothing
// that was dropped is waited for, several are begun at once.
func TestPace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const back = 10 * time.Second // when the network is
		p, start := newPace(4, 3*time.Second), time.Now()
		ctx, cancel := context.WithCancel(t.Context())
		var mu sync.Mutex
		var begun []time.Duration // when
		var asking sync.WaitGroup
		for range 60 {
			asking.Go(func() {
				for {
					over, err := p.begin(ctx)
					if err != nil {
						return
					}
					at := time.Since(start)
					mu.Lock()
					begun = append(begun, at)
					mu.Unlock()
					if at < back {
						time.Sleep(3 * time.Second)
					} else {
						time.Sleep(400 * time.Millisecond)
						p.set(false)
					}
					over()
				}
			})
		}
		time.Sleep(back + 2*connectMost)
		cancel()
		asking.Wait()
		first, soon := 0, time.Duration(0)
		together := map[time.Duration]int{}
		for i, at := range begun {
			switch {
			case at == 0:
				first++
			case at < back && at-begun[i-1] < p.every:
				t.Errorf("one was begun at %v, %v after another, want %v between them", at, at-begun[i-1], p.every)
			case at >= back && soon == 0:
				soon = at
			case at > back+connectMost:
				together[at]++
			}
		}
		most := 0
		for _, n := range together {
			most = max(most, n)
		}
		if first != beginMost || most < beginMost/2 {
			t.Errorf("%d were begun at once at first and %d later, want %d", first, most, beginMost)
		}
		if soon == 0 || soon > back+p.every {
			t.Errorf("the first one after the network was back was begun at %v, want it within %v", soon, p.every)
		}
	})
}
