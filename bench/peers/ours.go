package peers

import (
	"context"
	"net/url"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all" // every scheme
	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/etcd"
)

const (
	everyURL   = "fencelock.Open of a URL, as in the README"
	everyoneIs = "a Locker for each goroutine"
)

// ours is this library on each store. "each" is a Locker for every goroutine: the goroutines of one
// process then hand over through the store, as if they were processes, and not to each other.
var ours = []Library{
	{"fencelock redis", "", everyURL, open("redis", nil, false)},
	{"fencelock redis each", everyoneIs, everyURL, open("redis", nil, true)},
	{
		"fencelock redlock", "fresh=1, since the nodes have just been started", everyURL,
		open("redlock", url.Values{"fresh": {"1"}}, false),
	},
	{"fencelock etcd", "", everyURL, open("etcd", nil, false)},
	{"fencelock zookeeper", "", everyURL, open("zookeeper", nil, false)},
	{"fencelock zookeeper each", everyoneIs, everyURL, open("zookeeper", nil, true)},
	{"fencelock postgres row", "", everyURL, openPostgres("row", "40", false)},
	{"fencelock postgres row each", everyoneIs, everyURL, openPostgres("row", "4", true)},
	{"fencelock postgres lease", "", everyURL, openPostgres("lease", "32", false)},
	{"fencelock postgres lease each", everyoneIs, everyURL, openPostgres("lease", "4", true)},
}

func openPostgres(mode, conns string, each bool) opener {
	return open("postgres", url.Values{"mode": {mode}, "pool_max_conns": {conns}}, each)
}

func open(scheme string, keys url.Values, each bool) opener {
	return func(ctx context.Context, at place) (locker, error) {
		u := at.url(scheme, keys)
		q := u.Query()
		q.Set("prefix", at.Prefix+":")
		u.RawQuery = q.Encode()
		l := lockers(each, func(ctx context.Context) (*fencelock.Locker, error) {
			return fencelock.Open(ctx, u.String())
		})
		_, err := l.get(ctx)
		return l.locker(), err
	}
}

// openEtcdLockers is a Locker for each goroutine, all on one client.
func openEtcdLockers(_ context.Context, at place) (locker, error) {
	c, err := etcdClient(at)
	if err != nil {
		return locker{}, err
	}
	ours := lockers(true, func(context.Context) (*fencelock.Locker, error) {
		d, err := etcd.New(c, &etcd.Options{Prefix: at.Prefix + ":"})
		if err != nil {
			return nil, err
		}
		return fencelock.New(d)
	})
	return ours.on(c), nil
}

// lockersOf are the Lockers of a process.
type lockersOf struct{ *made[*fencelock.Locker] }

func lockers(each bool, dial func(context.Context) (*fencelock.Locker, error)) lockersOf {
	end := (*fencelock.Locker).Close
	return lockersOf{&made[*fencelock.Locker]{make: dial, end: end, each: each}}
}

func (m lockersOf) locker() locker {
	return locker{
		mutex: func(ctx context.Context, name string) (measure.Mutex, error) {
			l, err := m.get(ctx)
			if err != nil {
				return measure.Mutex{}, err
			}
			return measure.Ours(l.Mutex(name)), nil
		},
		hold: func(ctx context.Context, name string) error {
			l, err := m.get(ctx)
			if err == nil {
				_, err = l.Mutex(name).Lock(ctx)
			}
			return err
		},
		close: m.close,
	}
}

// on closes a client after the lockers on it.
func (m lockersOf) on(c *clientv3.Client) locker {
	l := m.locker()
	l.close = func() { m.close(); _ = c.Close() }
	return l
}
