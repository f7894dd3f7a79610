package zookeeper_test

import (
	"testing"
	"time"
)

// A release leaves in the lock's node whose it was. That is not taken for the passing on of a waiter that gives up while another one holds.
func TestWaiterThatGivesUpPassesNothingOn(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	first := lock(t, open(t, z.URL()).Mutex("x"))
	second := queue(t, c, open(t, z.URL()), "x", 1)
	third := queue(t, c, open(t, z.URL()), "x", 2)
	fourth := queue(t, c, open(t, z.URL()), "x", 3)
	unlock(t, first)
	held := second.granted(t, 5*time.Second)
	data, _, err := c.Get(at("x"))
	must(t, err)
	if len(data) == 0 {
		t.Error("the release says nothing of itself")
	}
	third.cancel()
	<-third.done
	await(t, 5*time.Second, "one in the queue", func() bool { return len(nodes(t, c, "x", "wait-")) == 1 })
	select {
	case <-fourth.done:
		t.Fatalf("granted while another one holds: %v", fourth.err)
	case <-time.After(300 * time.Millisecond):
	}
	unlock(t, held)
	last := fourth.granted(t, 5*time.Second)
	if last.Token() <= held.Token() {
		t.Errorf("token: got %d after %d", last.Token(), held.Token())
	}
	unlock(t, last)
	awaitClean(t, c, time.Second)
}
