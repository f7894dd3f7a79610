package peers

import (
	"context"
	"errors"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcd"
)

var onEtcd = []Library{
	{"fencelock etcd each", "a Locker for each goroutine, all on one client, as the sessions of etcd mutex each are", "etcd.New and fencelock.New", openEtcdLockers},
	{"raw etcd", "client/v3: a Txn that puts a key if there is none, a delete, and a watch that was opened before", "etcd.io, the API's Txn and Watch", openRawEtcd},
	{"etcd mutex", "one session for all, WithTTL(30)", "concurrency.NewSession and NewMutex", openEtcdMutex(false)},
	{"etcd mutex each", "a session for each goroutine, WithTTL(30): two goroutines of one session would both hold the lock", "concurrency.NewMutex: the key is the session's", openEtcdMutex(true)},
}

func etcdClient(at place) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: at.Addrs, Logger: zap.NewNop()})
}

func openRawEtcd(ctx context.Context, at place) (locker, error) {
	c, err := etcdClient(at)
	if err != nil {
		return locker{}, err
	}
	s, err := concurrency.NewSession(c, concurrency.WithTTL(int(expiry.Seconds()))) // for its lease
	if err != nil {
		return locker{}, errors.Join(err, c.Close())
	}
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			key := at.Prefix + "/" + name
			var gone clientv3.WatchChan // from the first wait on
			free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
			put := clientv3.OpPut(key, "", clientv3.WithLease(s.Lease()))
			return mutex{
				lock: func(ctx context.Context) error {
					for {
						resp, err := c.Txn(ctx).If(free).Then(put).Commit()
						if err != nil || resp.Succeeded {
							return err
						}
						if gone == nil {
							gone = c.Watch(context.WithoutCancel(ctx), key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
						}
						select {
						case <-gone:
						case <-ctx.Done():
							return ctx.Err()
						}
					}
				},
				unlock: func(ctx context.Context) error { _, err := c.Delete(ctx, key); return err },
			}, nil
		},
		close: func() { _, _ = s.Close(), c.Close() },
	}, ctx.Err()
}

func openEtcdMutex(each bool) func(context.Context, place) (locker, error) {
	return func(_ context.Context, at place) (locker, error) {
		c, err := etcdClient(at)
		if err != nil {
			return locker{}, err
		}
		var (
			mu  sync.Mutex
			all []*concurrency.Session
		)
		session := func() (*concurrency.Session, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(all) > 0 && !each {
				return all[0], nil
			}
			s, err := concurrency.NewSession(c, concurrency.WithTTL(int(expiry.Seconds())))
			if err == nil {
				all = append(all, s)
			}
			return s, err
		}
		return locker{
			mutex: func(_ context.Context, name string) (mutex, error) {
				s, err := session()
				if err != nil {
					return mutex{}, err
				}
				m := concurrency.NewMutex(s, at.Prefix+"/"+name)
				return mutex{lock: m.Lock, unlock: m.Unlock}, nil
			},
			close: func() {
				mu.Lock()
				defer mu.Unlock()
				for _, s := range all {
					_ = s.Close()
				}
				_ = c.Close()
			},
		}, nil
	}
}

func openEtcdLockers(_ context.Context, at place) (locker, error) {
	c, err := etcdClient(at)
	if err != nil {
		return locker{}, err
	}
	var (
		mu  sync.Mutex
		all []*fencelock.Locker
	)
	return locker{
		mutex: func(_ context.Context, name string) (mutex, error) {
			d, err := etcd.New(c, &etcd.Options{Prefix: at.Prefix + ":"})
			if err != nil {
				return mutex{}, err
			}
			l, err := fencelock.New(d)
			if err != nil {
				return mutex{}, err
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, l)
			return ourMutex(l, name), nil
		},
		close: func() {
			mu.Lock()
			defer mu.Unlock()
			for _, l := range all {
				_ = l.Close() // what it does not confirm goes with the server
			}
			_ = c.Close()
		},
	}, nil
}
