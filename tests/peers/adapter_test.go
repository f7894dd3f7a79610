package peers

import (
	"context"
	"time"
)

// A library is one way to lock, as its documents show it.
type library struct {
	name, module string
	store        string // whose servers it runs on
	settings     string // that differ from what its documents show, and why
	ours         bool
	noCtx        bool // Lock takes no context
	fifo         bool // it says that it serves in order
	token        bool // a hold has a number that rises
	lost         bool // a hold says that it is lost
	keeps        bool // it renews by itself
	short        time.Duration
	open         func(ctx context.Context, addrs []string, ttl time.Duration) (client, error)
	taken        func(error) bool // the error says that another has the lock
	// file writes a text into what the lock protects, or reads it if that is empty. Nil: not asked.
	file func(ctx context.Context, addrs []string, name string, text *string) error
	only string // the one question that a twin is asked
	// breakIt takes a lock from its holder, behind the library's back unless it offers that.
	breakIt func(ctx context.Context, addrs []string, name string) error
}

// client is what one process makes of a library.
type client struct {
	mutex func(name string) mutex
	close func()
}

// mutex is an object of the library for one name. A nil field is not offered.
type mutex struct {
	lock, try func(ctx context.Context) (hold, error)
}

// hold is a lock that was granted. A nil field is not offered.
type hold struct {
	unlock func(ctx context.Context) error
	lost   <-chan struct{}
	token  func() int64
}

const (
	long  = 20 * time.Second // a lease that does not end while a question is asked
	short = 2 * time.Second  // one that does
)

// after is closed at a moment.
func after(d time.Duration) <-chan struct{} {
	c := make(chan struct{})
	time.AfterFunc(d, func() { close(c) })
	return c
}

func libraries() []library {
	var all []library
	for _, some := range [][]library{onRedis, onEtcd, onZooKeeper, onPostgres, ours, twins} {
		all = append(all, some...)
	}
	for i := range all {
		if all[i].short == 0 {
			all[i].short = short
		}
	}
	return all
}
