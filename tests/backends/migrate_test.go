package backends

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
)

// moveAll is a migration of every name.
func moveAll(ctx context.Context, phase backend.Phase, from, to backend.Driver) (backend.Driver, error) {
	d, err := migrate.New(ctx, migrate.Options{
		Move: "suite", Scope: backend.Scope{{Match: "*"}}, Phase: phase, From: from, To: to,
	})
	if err != nil {
		return nil, errors.Join(err, from.Close(), to.Close())
	}
	return d, nil
}

// behind is a driver behind a link of calls, but for what it does as a Gater.
func behind(d backend.Driver, l conformance.Link) backend.Driver {
	type gates struct{ core.Gater }
	return core.Composite{Caller: struct {
		core.Caller // its methods are nearer than the same ones of gates
		gates
	}{core.Of(conformance.Wrap(d, l)), gates{core.Of(d).(core.Gater)}}}
}

// memoryMove holds phase both over two stores in memory to the suite. A fault is one of both.
func memoryMove(t *testing.T) conformance.Harness {
	t.Helper()
	var stores [2]*memory.Driver
	for i := range stores {
		d, err := memory.New()
		if err != nil {
			t.Fatal(err)
		}
		stores[i] = d
	}
	driver := func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
		var d [2]backend.Driver
		for i, s := range stores {
			client, err := s.Client(c.Prefix)
			if err != nil {
				return nil, err
			}
			if d[i] = client; c.Link != nil {
				d[i] = behind(client, c.Link)
			}
		}
		return moveAll(ctx, backend.PhaseBoth, d[0], d[1])
	}
	return conformance.Harness{
		Name:   "memory+memory",
		Driver: driver,
		Link:   func(context.Context) (conformance.Link, error) { return conformance.NewCallLink(), nil },
		Calls:  true,
		Store: twoStores{
			conformance.DriverStore(func(_ context.Context, prefix string) (backend.Driver, error) {
				return stores[0].Client(prefix)
			}),
			conformance.DriverStore(func(_ context.Context, prefix string) (backend.Driver, error) {
				return stores[1].Client(prefix)
			}),
		},
	}
}

func TestMigrationInMemory(t *testing.T) {
	t.Parallel()
	skipShort(t)
	run(t, memoryMove(t))
}

func TestMigrationInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := memoryMove(t)
		h.Short = true
		for res := range conformance.Report(t.Context(), h) {
			if res.Err != nil {
				t.Error(res.Err)
			}
		}
	})
}

// TestMigrationRedisEtcd holds phase both over real servers to the suite.
func TestMigrationRedisEtcd(t *testing.T) {
	t.Parallel()
	skipShort(t)
	r := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	e := servers.Etcd(t, servers.EtcdOptions{})
	redisDirect := goredis.NewClient(&goredis.Options{Addr: r.Addr()})
	t.Cleanup(func() { _ = redisDirect.Close() })
	run(t, conformance.Harness{
		Name:   "redis+etcd",
		Stores: 2,
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			hosts := [2]string{r.Addr(), e.Servers()[0].Addr()}
			if l, ok := c.Link.(twoLinks); ok {
				hosts = [2]string{l.old.Addr(), l.new.Addr()}
			}
			prefix := "?prefix=" + url.QueryEscape(c.Prefix)
			from, err := backend.Open(ctx, "redis://"+hosts[0]+prefix, nil)
			if err != nil {
				return nil, err
			}
			to, err := backend.Open(ctx, "etcd://"+hosts[1]+prefix, nil)
			if err != nil {
				return nil, errors.Join(err, from.Close())
			}
			return moveAll(ctx, backend.PhaseBoth, from, to)
		},
		Link: func(context.Context) (conformance.Link, error) {
			old, err := faultproxy.New(r.Addr())
			if err != nil {
				return nil, err
			}
			fresh, err := faultproxy.New(e.Servers()[0].Addr())
			return twoLinks{old, fresh}, err
		},
		Store: twoStores{
			redisStore{
				redisDirect, func(f func(goredis.Cmdable) error) error { return f(redisDirect) },
			},
			etcdStore{etcdClient(t, e)},
		},
		Server: twoServers{redisServer{r}, etcdServer{e.Servers()[0]}},
	})
}

// twoStores looks at both stores. A lock is held if it is held in both, and what is taken away is
// taken from the old one.
type twoStores struct{ old, new conformance.Store }

func (s twoStores) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	a, left, err := s.old.Look(ctx, prefix, name)
	b, left2, err2 := s.new.Look(ctx, prefix, name)
	return a && b, min(left, left2), errors.Join(err, err2)
}

func (s twoStores) Take(ctx context.Context, prefix, name string) error {
	return s.old.Take(ctx, prefix, name)
}

func (s twoStores) Left(ctx context.Context, prefix string) ([]string, error) {
	a, err := s.old.Left(ctx, prefix)
	b, err2 := s.new.Left(ctx, prefix)
	left := slices.DeleteFunc(append(a, b...), func(key string) bool {
		// The gates, and what clients have reported.
		return strings.Contains(key, "}g"+prefix) || strings.Contains(key, "}k"+prefix) ||
			key == prefix+"~gates" || strings.HasPrefix(key, prefix+"~client/")
	})
	return left, errors.Join(err, err2)
}

// twoLinks is a way to both stores: each fault is one of both.
type twoLinks struct{ old, new *faultproxy.Proxy }

func (l twoLinks) Set(m faultproxy.Mode) { l.old.Set(m); l.new.Set(m) }
func (l twoLinks) Cut()                  { l.old.Cut(); l.new.Cut() }
func (l twoLinks) LoseReplies(n int)     { l.old.LoseReplies(n); l.new.LoseReplies(n) }
func (l twoLinks) Close() error          { return errors.Join(l.old.Close(), l.new.Close()) }

// Counts counts the busier of the two: what is done for a lock, each gets its part of.
func (l twoLinks) Counts() faultproxy.Counts {
	a, b := l.old.Counts(), l.new.Counts()
	a.Requests, a.LostReplies = max(a.Requests, b.Requests), max(a.LostReplies, b.LostReplies)
	a.Open, a.Opened = a.Open+b.Open, a.Opened+b.Opened
	return a
}

// twoServers are stopped and started together.
type twoServers struct{ old, new conformance.Server }

func (s twoServers) Stop() error     { return errors.Join(s.old.Stop(), s.new.Stop()) }
func (s twoServers) Start() error    { return errors.Join(s.old.Start(), s.new.Start()) }
func (s twoServers) Kill() error     { return errors.Join(s.old.Kill(), s.new.Kill()) }
func (s twoServers) Pause() error    { return errors.Join(s.old.Pause(), s.new.Pause()) }
func (s twoServers) Resume() error   { return errors.Join(s.old.Resume(), s.new.Resume()) }
func (s twoServers) Wipe() error     { return errors.Join(s.old.Wipe(), s.new.Wipe()) }
func (s twoServers) KeepsData() bool { return s.old.KeepsData() && s.new.KeepsData() }
