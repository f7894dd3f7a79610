package peers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

var onZooKeeper = []library{{
	name: "go-zookeeper", module: "github.com/go-zookeeper/zk", store: "zookeeper",
	settings: "a connection for each process; that its session is disconnected counts as a loss",
	noCtx:    true, keeps: true, fifo: true, lost: true, open: openZooKeeper,
	taken: func(error) bool { return false }, // it waits always
	breakIt: func(ctx context.Context, addrs []string, name string) error {
		c, _, err := zkConnect(ctx, addrs, long)
		if err != nil {
			return err
		}
		defer c.Close()
		nodes, _, err := c.Children("/" + name)
		if err == nil && len(nodes) != 1 {
			err = errors.New("there is no node of the lock")
		}
		if err != nil {
			return err
		}
		return c.Delete("/"+name+"/"+nodes[0], -1)
	},
}}

// silent is the client's logger.
type silent struct{}

func (silent) Printf(string, ...any) {}

// zkConnect returns a connection that has a session, and what is closed once it is disconnected.
func zkConnect(ctx context.Context, addrs []string, session time.Duration) (*zk.Conn, <-chan struct{}, error) {
	c, events, err := zk.Connect(addrs, session, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, nil, err
	}
	up, down := make(chan struct{}), make(chan struct{})
	go func() {
		var once, twice sync.Once
		for e := range events { // Close ends it
			switch e.State {
			case zk.StateHasSession:
				once.Do(func() { close(up) })
			case zk.StateDisconnected, zk.StateExpired:
				twice.Do(func() { close(down) })
			}
		}
	}()
	select {
	case <-up:
		return c, down, nil
	case <-ctx.Done():
		c.Close()
		return nil, nil, fmt.Errorf("no session: %w", ctx.Err())
	}
}

func openZooKeeper(ctx context.Context, addrs []string, ttl time.Duration) (client, error) {
	c, down, err := zkConnect(ctx, addrs, ttl)
	if err != nil {
		return client{}, err
	}
	return client{
		mutex: func(name string) mutex {
			l := zk.NewLock(c, "/"+name, zk.WorldACL(zk.PermAll))
			return mutex{lock: func(context.Context) (hold, error) {
				if err := l.Lock(); err != nil {
					return hold{}, err
				}
				return hold{unlock: func(context.Context) error { return l.Unlock() }, lost: down}, nil
			}}
		},
		close: c.Close,
	}, nil
}
