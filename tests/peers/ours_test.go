package peers

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all" // every scheme
)

var ours = []library{
	fencelocks("fencelock-redis", "redis", "redis", nil),
	fencelocks("fencelock-redlock", "redlock", "redlock", url.Values{"fresh": {"1"}}),
	fencelocks("fencelock-etcd", "etcd", "etcd", nil),
	fencelocks("fencelock-zookeeper", "zookeeper", "zookeeper", nil),
	fencelocks("fencelock-postgres-lease", "postgres", "postgres", url.Values{"mode": {"lease"}}),
	fencelocks("fencelock-postgres-row", "postgres", "postgres", url.Values{"mode": {"row"}}),
}

// fencelocks is this library on one store.
func fencelocks(name, store, scheme string, keys url.Values) library {
	open := func(ctx context.Context, addrs []string, ttl time.Duration) (*fencelock.Locker, error) {
		u := url.URL{Scheme: scheme, Host: strings.Join(addrs, ",")}
		q := url.Values{}
		for k, v := range keys {
			q[k] = v
		}
		if scheme == "postgres" {
			u.User, u.Path = url.User("postgres"), "/postgres"
			q.Set("sslmode", "disable")
		}
		u.RawQuery = q.Encode()
		return fencelock.Open(ctx, u.String(), fencelock.WithTTL(ttl))
	}
	return library{
		name: name, module: "github.com/fencelock/fencelock", store: store, ours: true,
		keeps: true, fifo: name != "fencelock-redlock", token: true, lost: true,
		taken: func(err error) bool { return errors.Is(err, fencelock.ErrLocked) },
		breakIt: func(ctx context.Context, addrs []string, name string) error {
			l, err := open(ctx, addrs, short)
			if err != nil {
				return err
			}
			defer l.Close()
			return l.Break(ctx, name)
		},
		open: func(ctx context.Context, addrs []string, ttl time.Duration) (client, error) {
			l, err := open(ctx, addrs, ttl)
			if err != nil {
				return client{}, err
			}
			return client{
				mutex: func(name string) mutex {
					m := l.Mutex(name)
					type take = func(context.Context) (*fencelock.Lease, error)
					with := func(take take) func(context.Context) (hold, error) {
						return func(ctx context.Context) (hold, error) {
							le, err := take(ctx)
							if err != nil {
								return hold{}, err
							}
							return hold{
								unlock: le.Unlock, lost: le.Done(),
								token: func() int64 { return int64(le.Token()) },
							}, nil
						}
					}
					return mutex{lock: with(m.Lock), try: with(m.TryLock)}
				},
				close: func() { _ = l.Close() },
			}, nil
		},
	}
}
