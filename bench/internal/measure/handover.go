package measure

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// A hand-over begins when the waiter has stood in the queue for a random time between these two: then its
// watch or subscription is there. The time is random so that it does not fall into step with a library that
// polls.
const (
	settleLeast = 10 * time.Millisecond
	settleMost  = 60 * time.Millisecond // shorter than the 100 ms on which etcd serves some watches
	grantMost   = 30 * time.Second      // bounds a wait for the lock
	freeMost    = 10 * time.Second      // bounds an unlock
)

// An End is one of the two clients of a hand-over. Lock returns the time of the grant, Unlock the time of
// its call, by one clock of both ends.
type End interface {
	Lock(context.Context) (time.Duration, error)
	Unlock(context.Context) (time.Duration, error)
}

// Here returns the End of a client of this process.
func Here(m Mutex) End { return here{m} }

type here struct{ m Mutex }

var epoch = time.Now()

func (h here) Lock(ctx context.Context) (time.Duration, error) {
	err := h.m.Lock(ctx)
	return time.Since(epoch), err
}

func (h here) Unlock(ctx context.Context) (time.Duration, error) {
	at := time.Since(epoch)
	return at, h.m.Unlock(ctx)
}

// HandOver passes a lock from one end to the other and back, for d and twice at least, and leaves
// it free. The latency is from the call of Unlock to the other end's grant. The rate is 1 / p50 of the
// latency.
func HandOver(ctx context.Context, holder, waiter End, d time.Duration) (Sample, error) {
	s := NewSample(1)
	_, err := holder.Lock(ctx)
	if err != nil {
		return s, err
	}
	for began := time.Now(); s.Each[0] < 2 || time.Since(began) < d; {
		took, err := pass(ctx, holder, waiter)
		if err != nil {
			return s, err
		}
		s.Latency.Note(took)
		s.Each[0]++
		holder, waiter = waiter, holder
	}
	s.Elapsed = time.Duration(float64(s.Each[0]) * s.Latency.Micros(50) * 1e3)
	_, err = release(ctx, holder)
	return s, err
}

// pass hands over once. After an error the lock is free.
func pass(ctx context.Context, holder, waiter End) (time.Duration, error) {
	type grant struct {
		at  time.Duration
		err error
	}
	limited, cancel := context.WithTimeout(ctx, grantMost)
	defer cancel()
	got := make(chan grant, 1)
	go func() {
		at, err := waiter.Lock(limited)
		got <- grant{at, err}
	}()
	err := Pause(ctx, settleLeast+rand.N(settleMost-settleLeast))
	freed, failed := release(ctx, holder)
	if failed != nil {
		cancel() // the store does not wake the waiter
	}
	g := <-got
	if err = errors.Join(err, failed, g.err); err != nil && g.err == nil {
		_, failed = release(ctx, waiter)
		return 0, errors.Join(err, failed)
	}
	return g.at - freed, err
}

// release unlocks, also when ctx has ended.
func release(ctx context.Context, e End) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), freeMost)
	defer cancel()
	return e.Unlock(ctx)
}
