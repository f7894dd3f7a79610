package backends

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redlock"
)

func TestRedlock(t *testing.T) {
	t.Parallel()
	redlockOver(t, 3)
}

func TestRedlockOfFive(t *testing.T) {
	t.Parallel()
	skipShort(t)
	redlockOver(t, 5)
}

func redlockOver(t *testing.T, n int) {
	g := servers.Redises(t, n, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
	var direct []*goredis.Client
	for _, addr := range g.Addrs() {
		c := goredis.NewClient(&goredis.Options{Addr: addr})
		t.Cleanup(func() { _ = c.Close() })
		direct = append(direct, c)
	}
	// fresh=1: the servers of a test are new, and nothing was forgotten. It is heeded once, by the first client.
	address := func(c conformance.Client) (string, error) {
		hosts := g.Addrs()
		if p, ok := c.Link.(*proxies); ok {
			for i, h := range hosts {
				one, err := p.to(h)
				if err != nil {
					return "", err
				}
				hosts[i] = one.Addr()
			}
		}
		return "redlock://" + strings.Join(hosts, ",") + "?fresh=1&prefix=" + url.QueryEscape(c.Prefix), nil
	}
	dial := func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
		u, err := address(c)
		if err != nil {
			return nil, err
		}
		return backend.Open(ctx, u, nil)
	}
	run(t, conformance.Harness{
		Name:   g.String(),
		Stores: n,
		Driver: dial,
		Link:   func(context.Context) (conformance.Link, error) { return &proxies{}, nil },
		Store:  redlockStore{direct},
		Server: rewinding(t, redlockServer{g, func() error {
			d, err := dial(t.Context(), conformance.Client{Prefix: "start"})
			if err != nil {
				return err
			}
			errs := []error{d.Close()}
			for _, c := range direct { // which have begun their quarantine by now
				errs = append(errs, c.HDel(t.Context(), "fl\x00rl", "until").Err())
			}
			return errors.Join(errs...)
		}}, g.Servers()...),
		Fill: func(ctx context.Context) (func(context.Context) error, error) { return fillRedis(ctx, direct...) },
		URL: func(c conformance.Client) string {
			u, _ := address(c) // without a Link there is no error
			return u
		},
		Given: func(context.Context) (backend.Driver, func(context.Context) error, error) {
			var clients []goredis.UniversalClient
			for _, addr := range g.Addrs() {
				c := goredis.NewClient(&goredis.Options{Addr: addr})
				t.Cleanup(func() { _ = c.Close() })
				clients = append(clients, c)
			}
			return givenNodes(clients)
		},
	})
}

// givenNodes makes a driver over the caller's clients, and the check that they work and are as they were.
func givenNodes(clients []goredis.UniversalClient) (backend.Driver, func(context.Context) error, error) {
	type facts struct {
		Timeouts bool
		Retries  int
		Read     time.Duration
	}
	look := func() (all []facts) {
		for _, c := range clients {
			o := c.(*goredis.Client).Options()
			all = append(all, facts{o.ContextTimeoutEnabled, o.MaxRetries, o.ReadTimeout})
		}
		return all
	}
	before := look()
	d, err := redlock.New(clients, nil)
	return d, func(ctx context.Context) error {
		if !slices.Equal(look(), before) {
			return errors.New("the options of a client have changed")
		}
		var errs []error
		for _, c := range clients {
			errs = append(errs, c.Set(ctx, "still-there", "1", time.Second).Err())
		}
		return errors.Join(errs...)
	}, err
}

// redlockServer is all nodes as one store.
type redlockServer struct {
	*servers.Group
	// settle ends the quarantines after a start of all nodes, for the rules about restarts do not wait them out: the
	// driver's own tests are about that.
	settle func() error
}

func (redlockServer) KeepsData() bool { return true }

func (s redlockServer) each(f func(*servers.Server) error) error {
	var errs []error
	for _, one := range s.Servers() {
		errs = append(errs, f(one))
	}
	return errors.Join(errs...)
}

func (s redlockServer) Start() error  { return errors.Join(s.Group.Start(), s.settle()) }
func (s redlockServer) Stop() error   { return s.each((*servers.Server).Stop) }
func (s redlockServer) Pause() error  { return s.each((*servers.Server).Pause) }
func (s redlockServer) Resume() error { return s.each((*servers.Server).Resume) }
func (s redlockServer) Wipe() error   { return s.each((*servers.Server).Wipe) }

// redlockStore looks at the nodes directly.
type redlockStore struct{ nodes []*goredis.Client }

// Look: held where a majority has the key, until a majority has it no more.
func (s redlockStore) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	var left []time.Duration
	for _, c := range s.nodes {
		ttl, err := c.PTTL(ctx, prefix+name).Result()
		if err != nil {
			return false, 0, err
		}
		left = append(left, ttl)
	}
	slices.Sort(left)
	ttl := left[len(left)/2]
	return ttl > 0, ttl, nil
}

func (s redlockStore) Take(ctx context.Context, prefix, name string) error {
	var errs []error
	for _, c := range s.nodes {
		errs = append(errs, c.Del(ctx, prefix+name).Err())
	}
	return errors.Join(errs...)
}

// Left lists the keys of the prefix's locks and waiters; the state of each node is constant. The driver returns when a
// majority has answered, so the last nodes have a moment to follow.
func (s redlockStore) Left(ctx context.Context, prefix string) ([]string, error) {
	var left []string
	for range 100 {
		left = nil
		for _, c := range s.nodes {
			it := c.Scan(ctx, 0, "*", 1000).Iterator()
			for it.Next(ctx) {
				if strings.Contains(it.Val(), prefix) {
					left = append(left, it.Val())
				}
			}
			if err := it.Err(); err != nil {
				return nil, err
			}
		}
		if len(left) == 0 {
			return nil, nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return left, nil
}
