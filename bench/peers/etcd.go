package peers

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

var onEtcd = []Library{
	{
		"fencelock etcd each",
		"a Locker for each goroutine, all on one client, as the sessions of etcd mutex each are",
		"etcd.New and fencelock.New", openEtcdLockers,
	},
	{
		"raw etcd",
		"client/v3: a Txn that puts a key if there is none, a delete, " +
			"and a watch that was opened before",
		"etcd.io, the API's Txn and Watch", byHand("etcd", nil, true),
	},
	{
		"etcd mutex", "one session for all, WithTTL(30)", "concurrency.NewSession and NewMutex",
		openEtcdMutex(false),
	},
	{
		"etcd mutex each",
		"a session for each goroutine, WithTTL(30): " +
			"two goroutines of one session would both hold the lock",
		"concurrency.NewMutex: the key is the session's", openEtcdMutex(true),
	},
}

func etcdClient(at place) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: at.Addrs, Logger: zap.NewNop()})
}

func openEtcdMutex(each bool) opener {
	return func(_ context.Context, at place) (locker, error) {
		c, err := etcdClient(at)
		if err != nil {
			return locker{}, err
		}
		sessions := &made[*concurrency.Session]{
			make: func(context.Context) (*concurrency.Session, error) {
				return concurrency.NewSession(c, concurrency.WithTTL(int(expiry.Seconds())))
			},
			end:  (*concurrency.Session).Close,
			each: each,
		}
		return locker{
			mutex: func(ctx context.Context, name string) (measure.Mutex, error) {
				s, err := sessions.get(ctx)
				if err != nil {
					return measure.Mutex{}, err
				}
				m := concurrency.NewMutex(s, at.Prefix+"/"+name)
				return measure.Mutex{Lock: m.Lock, Unlock: m.Unlock}, nil
			},
			close: func() { sessions.close(); _ = c.Close() },
		}, nil
	}
}
