package redisnode

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// quick is a PubSub whose server confirms at once, and says nothing else.
type quick struct {
	says   chan Event
	over   chan struct{}
	listen map[string]bool // the channels that the server knows of
}

func (q *quick) Subscribe(_ context.Context, channels ...string) error {
	q.listen[channels[0]] = true
	q.says <- Event{Kind: "ssubscribe", Channel: channels[0]}
	return nil
}

func (q *quick) Unsubscribe(_ context.Context, channels ...string) error {
	delete(q.listen, channels[0])
	return nil
}

func (q *quick) Ping(context.Context, ...string) error { return nil }

func (q *quick) Receive(context.Context, time.Duration) (Event, error) {
	select {
	case e := <-q.says:
		return e, nil
	case <-q.over:
		return Event{}, errors.New("closed")
	}
}

func (q *quick) Close() error { close(q.over); return nil }

// nobody is a Waiter that is not to be told anything.
type nobody struct{}

func (nobody) Push(string)        {}
func (nobody) Wake(time.Duration) {}

// A channel is left once nobody has waited on it for a while, also if nobody waits on any other just then: what comes
// now and then keeps the hub.
func TestChannelsAreLeftNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &quick{says: make(chan Event, 1), over: make(chan struct{}), listen: map[string]bool{}}
		hs := &Hubs{Idle: IdleFor, Sharded: true, Moved: func() {}}
		defer hs.Close()
		for i := range 10 {
			h, err := hs.Open("", func(context.Context) PubSub { return q })
			if err != nil {
				t.Fatal(err)
			}
			l := &Listener{Waiter: nobody{}, Nonce: "n", Channel: fmt.Sprint(i)}
			ready, err := l.Join(h)
			if err != nil {
				t.Fatal(err)
			}
			<-ready
			l.Leave()
			time.Sleep(IdleFor * 2 / 3)
			synctest.Wait()
			if n := len(q.listen); n > 2 {
				t.Errorf("after %d waits one after the other: %d channels, want the last two at the most", i+1, n)
			}
		}
	})
}

// The hub ends once nobody has waited for a while, also where a server has taken the last channel back.
func TestHubEndsWithoutWaiters(t *testing.T) {
	for _, back := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := &quick{says: make(chan Event, 1), over: make(chan struct{}), listen: map[string]bool{}}
			hs := &Hubs{Idle: IdleFor, Moved: func() {}}
			defer hs.Close()
			h, err := hs.Open("", func(context.Context) PubSub { return q })
			if err != nil {
				t.Fatal(err)
			}
			l := &Listener{Waiter: nobody{}, Nonce: "n", Channel: "c"}
			ready, err := l.Join(h)
			if err != nil {
				t.Fatal(err)
			}
			<-ready
			if back {
				q.says <- Event{Kind: "sunsubscribe", Channel: "c"}
				synctest.Wait()
			}
			time.Sleep(2 * IdleFor)
			if err := h.err; err != nil {
				t.Errorf("ended beside a waiter: %v", err)
			}
			l.Leave()
			time.Sleep(IdleFor + time.Second)
			select {
			case <-h.Over():
			default:
				t.Errorf("taken back: %v: it goes on, though nobody waits", back)
			}
		})
	}
}

// What a server says of one channel costs the same whatever the number of the others.
func TestManyChannels(t *testing.T) {
	const many = 10_000
	q := &quick{says: make(chan Event, 1), over: make(chan struct{}), listen: map[string]bool{}}
	hs := &Hubs{Idle: IdleFor}
	t.Cleanup(hs.Close)
	h, err := hs.Open("", func(context.Context) PubSub { return q })
	if err != nil {
		t.Fatal(err)
	}
	h.reading = true // by this test
	for i := range many {
		l := &Listener{Waiter: nobody{}, Nonce: fmt.Sprint(i), Channel: fmt.Sprint(i)}
		if _, err := l.Join(h); err != nil {
			t.Fatal(err)
		}
		<-q.says
	}
	began := time.Now()
	for i := range many {
		h.take(Event{Kind: "ssubscribe", Channel: fmt.Sprint(i)})
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("%d confirmations of as many waiters took %v", many, took)
	}
}
