package postgres

import (
	"context"
	"slices"
	"sync"
)

const (
	// batchMost is how many requests go into one statement.
	batchMost = 128
	// batchesMost is how many such statements are under way at once.
	batchesMost = 2
	// batchFew is how many requests under way do not hold up others, for what follows soon would be as few.
	batchFew = 8
	// batchWorth is how many must have come for a statement beside one that is larger than that.
	batchWorth = 32
)

// batcher sends requests of one kind. One that finds none under way goes at once, by itself; those that come
// meanwhile go together in one statement, with one commit. What costs is the statement and its commit, so a crowd goes in few large ones.
type batcher[J any] struct {
	st *store
	// alone sends one, and all several; each of these gets its answer unless there is an error.
	alone func(ctx context.Context, j *J) error
	all   func(ctx context.Context, js []*J) error

	mu      sync.Mutex
	pending []*request[J]
	flying  int // statements under way
	aboard  int // requests in them
}

// request is one in a batch.
type request[J any] struct {
	job  *J
	done chan struct{}
	err  error // valid once done is closed
}

// do sends j. When ctx ends it returns, and the request may be under way still.
func (b *batcher[J]) do(ctx context.Context, j *J) error {
	b.mu.Lock()
	if b.flying == 0 {
		b.flying, b.aboard = 1, 1
		b.mu.Unlock()
		defer b.landed()
		return b.alone(ctx, j)
	}
	r := &request[J]{job: j, done: make(chan struct{})}
	b.pending = append(b.pending, r)
	if b.dueLocked(b.flying) {
		b.flying++
		b.st.flying.Go(b.lead)
	}
	b.mu.Unlock()
	select {
	case <-r.done:
		return r.err
	case <-ctx.Done():
		b.mu.Lock()
		defer b.mu.Unlock()
		b.pending = slices.DeleteFunc(b.pending, func(p *request[J]) bool { return p == r })
		return ctx.Err()
	}
}

// dueLocked reports whether what is pending goes now, beside others statements. b.mu is held.
func (b *batcher[J]) dueLocked(others int) bool {
	return len(b.pending) > 0 && (others == 0 || others < batchesMost && (b.aboard < batchFew || len(b.pending) >= batchWorth))
}

// landed is what follows a request that went by itself.
func (b *batcher[J]) landed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.aboard--
	if b.dueLocked(b.flying - 1) {
		b.st.flying.Go(b.lead)
		return
	}
	b.flying--
}

// lead sends what is pending until there is nothing any more, or what there is waits for another statement.
func (b *batcher[J]) lead() {
	for {
		b.mu.Lock()
		if !b.dueLocked(b.flying - 1) {
			b.flying--
			b.mu.Unlock()
			return
		}
		n := min(len(b.pending), batchMost)
		batch := slices.Clone(b.pending[:n])
		b.pending = slices.Delete(b.pending, 0, n)
		b.aboard += n
		b.mu.Unlock()
		b.send(batch)
		b.mu.Lock()
		b.aboard -= n
		b.mu.Unlock()
	}
}

// send sends a batch. If the server refuses it, each goes by itself, so that one refuses no other.
func (b *batcher[J]) send(batch []*request[J]) {
	ctx, cancel := context.WithTimeout(context.Background(), lookMost)
	defer cancel()
	js := make([]*J, len(batch))
	for i, r := range batch {
		js[i] = r.job
	}
	var err error
	if len(js) > 1 {
		err = b.all(ctx, js)
	}
	refused := len(js) == 1 || err != nil && ctx.Err() == nil
	for _, r := range batch {
		if r.err = err; refused {
			r.err = b.alone(ctx, r.job)
		}
		close(r.done)
	}
}
