package faultproxy

import (
	"context"
	"fmt"
)

// Counts says what passed through a proxy. Requests go from the client to the store, replies come back.
type Counts struct {
	Requests     int64 // chunks delivered to the store
	RequestBytes int64
	Replies      int64 // chunks delivered to clients
	ReplyBytes   int64
	LostReplies  int64 // chunks dropped by LoseReplies and LoseReplyTo

	HeldRequests int64 // chunks that were read and wait now: held, delayed or on their way
	HeldReplies  int64

	Open    int64 // client connections open now
	Opened  int64 // client connections ever accepted
	Refused int64 // client connections reset at once: Mode.Refuse, or the store did not accept
}

// Counts returns a consistent snapshot. A delivery is counted before it is written: a client that has seen a reply
// finds the reply and its request counted.
func (p *Proxy) Counts() Counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// ResetCounts sets to zero everything that counts up. What is open or held now stays counted.
func (p *Proxy) ResetCounts() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts = Counts{
		HeldRequests: p.counts.HeldRequests,
		HeldReplies:  p.counts.HeldReplies,
		Open:         p.counts.Open,
	}
}

// Await returns nil as soon as the counts satisfy ok, or an error that matches ctx.Err() and shows
// the counts. It looks at every change, so a test needs no sleep. ok is called with the proxy
// locked: it must only look at its argument.
func (p *Proxy) Await(ctx context.Context, ok func(Counts) bool) error {
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock() // so that the wake-up cannot fall between the look and the wait
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for !ok(p.counts) {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("faultproxy: awaited counts were not reached: %+v: %w", p.counts, err)
		}
		p.changed.Wait()
	}
	return nil
}
