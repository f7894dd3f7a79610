package peers

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

var onZooKeeper = []Library{
	{"zk.Lock", "one connection for all, a session of 30 s", "zk.NewLock", openZooKeeper},
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(ctx context.Context, at place) (locker, error) {
	conn, events, err := zk.Connect(at.Addrs, expiry, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return locker{}, err
	}
	up := make(chan struct{})
	go func() {
		var once sync.Once
		for e := range events { // Close ends it
			if e.State == zk.StateHasSession {
				once.Do(func() { close(up) })
			}
		}
	}()
	select {
	case <-up:
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(10 * time.Second):
		err = errors.New("no session of ZooKeeper")
	}
	if err != nil {
		conn.Close()
		return locker{}, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			l := zk.NewLock(conn, "/"+at.Prefix+"/"+name, zk.WorldACL(zk.PermAll))
			return mutex{
				lock:   func(context.Context) error { return l.Lock() }, // it takes no context
				unlock: func(context.Context) error { return l.Unlock() },
			}, nil
		},
		close: conn.Close,
	}, nil
}
