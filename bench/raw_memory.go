package bench

import (
	"context"
	"sync"
)

// rawMemory is the lock of a process that has no store: sync.Mutex.
type rawMemory struct{}

func (*rawMemory) cycle(string) (cycle, error) {
	var mu sync.Mutex
	return func(_ context.Context, held func()) error {
		mu.Lock()
		defer mu.Unlock()
		held()
		return nil
	}, nil
}

func (*rawMemory) relay(context.Context, string) (*relay, error) {
	var mu sync.Mutex
	lock := func(context.Context) error { mu.Lock(); return nil }
	unlock := func(context.Context) error { mu.Unlock(); return nil }
	return &relay{hold: lock, free: unlock, wait: lock, after: unlock}, nil
}

func (*rawMemory) commands(context.Context) (int64, bool) { return 0, false }
func (*rawMemory) wipe(context.Context) error             { return nil }
func (*rawMemory) close() error                           { return nil }
