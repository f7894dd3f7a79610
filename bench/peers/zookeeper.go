package peers

import (
	"context"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/bench/internal/raw"
)

var onZooKeeper = []Library{
	{"zk.Lock", "one connection for all, a session of 30 s", "zk.NewLock", openZooKeeper},
}

func openZooKeeper(ctx context.Context, at place) (locker, error) {
	conn, err := raw.ZooKeeperSession(ctx, at.Addrs, nil)
	if err != nil {
		return locker{}, err
	}
	return locker{
		mutex: func(_ context.Context, name string) (measure.Mutex, error) {
			l := zk.NewLock(conn, "/"+at.Prefix+"/"+name, zk.WorldACL(zk.PermAll))
			return measure.Mutex{
				Lock:   func(context.Context) error { return l.Lock() }, // it takes no context
				Unlock: func(context.Context) error { return l.Unlock() },
			}, nil
		},
		close: conn.Close,
	}, nil
}
