package peers

import (
	"context"
	"net/url"
	"strings"
	"sync"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all" // every scheme
)

const everyURL = "fencelock.Open of a URL, as in the README"

// ours is this library on each store. "each" is a Locker for every goroutine: the goroutines of one process then hand over through
// the store, as if they were processes, and not to each other.
var ours = []Library{
	{"fencelock redis", "", everyURL, open("redis", "", false)},
	{"fencelock redis each", "a Locker for each goroutine", everyURL, open("redis", "", true)},
	{"fencelock redlock", "fresh=1, since the nodes have just been started", everyURL, open("redlock", "fresh=1", false)},
	{"fencelock etcd", "", everyURL, open("etcd", "", false)},
	{"fencelock zookeeper", "", everyURL, open("zookeeper", "", false)},
	{"fencelock zookeeper each", "a Locker for each goroutine", everyURL, open("zookeeper", "", true)},
	{"fencelock postgres row", "", everyURL, open("postgres", "mode=row&pool_max_conns=40", false)},
	{"fencelock postgres row each", "a Locker for each goroutine", everyURL, open("postgres", "mode=row&pool_max_conns=4", true)},
	{"fencelock postgres lease", "", everyURL, open("postgres", "mode=lease&pool_max_conns=32", false)},
	{"fencelock postgres lease each", "a Locker for each goroutine", everyURL, open("postgres", "mode=lease&pool_max_conns=4", true)},
}

func open(scheme, keys string, each bool) func(context.Context, place) (locker, error) {
	return func(ctx context.Context, at place) (locker, error) {
		q, err := url.ParseQuery(keys)
		if err != nil {
			return locker{}, err
		}
		q.Set("prefix", at.Prefix+":")
		u := url.URL{Scheme: scheme, Host: strings.Join(at.Addrs, ","), RawQuery: q.Encode()}
		if scheme == "postgres" {
			u.User, u.Path = url.User("postgres"), "/postgres"
		}
		var (
			mu  sync.Mutex
			all []*fencelock.Locker
		)
		dial := func() (*fencelock.Locker, error) {
			mu.Lock()
			defer mu.Unlock()
			if len(all) > 0 && !each {
				return all[0], nil
			}
			l, err := fencelock.Open(ctx, u.String())
			if err == nil {
				all = append(all, l)
			}
			return l, err
		}
		if _, err := dial(); err != nil {
			return locker{}, err
		}
		return locker{
			mutex: func(_ context.Context, name string) (mutex, error) {
				l, err := dial()
				if err != nil {
					return mutex{}, err
				}
				return ourMutex(l, name), nil
			},
			hold: func(ctx context.Context, name string) error {
				l, err := dial()
				if err == nil {
					_, err = l.Mutex(name).Lock(ctx)
				}
				return err
			},
			close: func() {
				mu.Lock()
				defer mu.Unlock()
				for _, l := range all {
					_ = l.Close() // what it does not confirm goes with the server
				}
			},
		}, nil
	}
}

func ourMutex(l *fencelock.Locker, name string) mutex {
	m := l.Mutex(name)
	var le *fencelock.Lease
	return mutex{
		lock:   func(ctx context.Context) (err error) { le, err = m.Lock(ctx); return err },
		unlock: func(ctx context.Context) error { return le.Unlock(ctx) },
		renew:  func(ctx context.Context) error { return le.Renew(ctx) },
	}
}
