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
)

// batcher sends requests of one kind. One that finds none under way goes at once, by itself; those that come
// meanwhile go together in one statement, with one commit.
type batcher[J any] struct {
	st *store
	// alone sends one, and all several; each of these gets its answer unless there is an error.
	alone func(ctx context.Context, j *J) error
	all   func(ctx context.Context, js []*J) error

	mu      sync.Mutex
	pending []*request[J]
	flying  int
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
		b.flying++
		b.mu.Unlock()
		defer b.landed()
		return b.alone(ctx, j)
	}
	r := &request[J]{job: j, done: make(chan struct{})}
	b.pending = append(b.pending, r)
	if b.flying < batchesMost {
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

// landed is what follows a request that went by itself.
func (b *batcher[J]) landed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.pending) > 0 {
		b.st.flying.Go(b.lead)
		return
	}
	b.flying--
}

// lead sends what is pending until there is nothing any more.
func (b *batcher[J]) lead() {
	for {
		b.mu.Lock()
		n := min(len(b.pending), batchMost)
		if n == 0 {
			b.flying--
			b.mu.Unlock()
			return
		}
		batch := slices.Clone(b.pending[:n])
		b.pending = slices.Delete(b.pending, 0, n)
		b.mu.Unlock()
		b.send(batch)
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
