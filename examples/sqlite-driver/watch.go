package sqlitekv

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend/record"
)

// pollEvery is how often the rows are read that somebody waits for.
const pollEvery = 20 * time.Millisecond

// watch is one call of Watch.
type watch struct {
	key     string
	changed func(record.Value)
	seen    string // the last version that changed was called with; the poll's own
}

// Watch implements record.KV. It begins with the value that is there.
func (t *table) Watch(key string, changed func(record.Value)) (func(), error) {
	w := &watch{key: key, changed: changed}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.watches) == 0 {
		ctx, stop := context.WithCancel(context.Background())
		t.stop = stop
		t.polls.Go(func() { t.poll(ctx) })
	}
	t.watches[w] = struct{}{}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.watches, w)
		if len(t.watches) == 0 {
			t.stop()
		}
	}, nil
}

// poll tells watches of new versions until ctx ends.
func (t *table) poll(ctx context.Context) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var watches []*watch
		t.mu.Lock()
		if ctx.Err() != nil { // the watches of now are another poll's
			t.mu.Unlock()
			return
		}
		for w := range t.watches {
			watches = append(watches, w)
		}
		t.mu.Unlock()
		for _, w := range watches {
			v, err := t.Get(ctx, w.key) // after an error the next look tells
			if err == nil && v.Version != w.seen {
				w.seen = v.Version
				w.changed(v)
			}
		}
	}
}
