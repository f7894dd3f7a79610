package conformance

import (
	"context"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/internal/core"
)

// FromURL returns the harness of a live backend: clients under prefixes of
// their own, which touch no other key; a fault proxy where the URL has one host and no TLS; a second process, if
// the caller's main calls Child; and a look at the store through a client of its own. It does not stop the
// server. The driver's package must be imported.
func FromURL(rawURL string) (Harness, error) {
	u, err := backend.ParseURL(rawURL)
	if err != nil {
		return Harness{}, err
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Harness{}, backend.Invalid("the query of the %q URL cannot be read", u.Scheme)
	}
	if q.Has("ttl") {
		return Harness{}, backend.Invalid("the rules choose the TTL themselves: leave ttl= out of the URL")
	}
	if u.Scheme == "memory" {
		return inMemory()
	}
	own := q.Get("prefix")
	if !q.Has("prefix") {
		own = backend.DefaultPrefix
	}
	address := func(c Client) string {
		at, keys := *u, url.Values{}
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			at.Host = p.Addr()
		}
		maps.Copy(keys, q)
		keys.Set("prefix", own+c.Prefix)
		at.RawQuery = keys.Encode()
		return at.String()
	}
	h := Harness{
		Name: u.Scheme,
		Driver: func(ctx context.Context, c Client) (backend.Driver, error) {
			d, err := backend.Open(ctx, address(c), nil)
			if err != nil {
				return nil, err
			}
			return Wrap(d, c.Link), nil
		},
		URL: address,
	}
	h.Store = DriverStore(func(ctx context.Context, prefix string) (backend.Driver, error) {
		return backend.Open(ctx, address(Client{Prefix: prefix}), nil)
	})
	secure, _ := strconv.ParseBool(q.Get("tls"))
	switch hosts := backend.Hosts(u, ""); {
	case u.Host == "":
		h.Calls = true
		h.Link = func(context.Context) (Link, error) { return NewCallLink(), nil }
	case len(hosts) == 1 && ports[u.Scheme] != "" && !secure && !strings.HasPrefix(q.Get("sslmode"), "verify-"):
		target := backend.Hosts(u, ports[u.Scheme])[0]
		h.Link = func(context.Context) (Link, error) { return faultproxy.New(target) }
	}
	return h, nil
}

// ports are the ports of the schemes that a fault proxy can be put before: plain TCP, and clients that keep to the
// addresses they are given.
var ports = map[string]string{
	"redis": "6379", "etcd": "2379", "zookeeper": "2181", "postgres": "5432", "postgresql": "5432",
}

// inMemory is the harness of a memory store, whose clients share it in this process.
func inMemory() (Harness, error) {
	store, err := memory.New()
	if err != nil {
		return Harness{}, err
	}
	return Harness{
		Name:  "memory",
		Calls: true,
		Driver: func(_ context.Context, c Client) (backend.Driver, error) {
			d, err := store.Client(c.Prefix)
			if err != nil {
				return nil, err
			}
			return Wrap(d, c.Link), nil
		},
		Link: func(context.Context) (Link, error) { return NewCallLink(), nil },
		Store: DriverStore(func(_ context.Context, prefix string) (backend.Driver, error) {
			return store.Client(prefix)
		}),
	}, nil
}

// DriverStore is the Store of a backend that only its own driver can look at: open makes a client. A driver may hide
// things from it, so the rules about those (Needs.Behind) are excluded.
func DriverStore(open func(ctx context.Context, prefix string) (backend.Driver, error)) Store {
	return driverStore(open)
}

type driverStore func(ctx context.Context, prefix string) (backend.Driver, error)

// with calls look with a client of its own.
func (open driverStore) with(ctx context.Context, prefix string, look func(backend.Driver) error) error {
	d, err := open(ctx, prefix)
	if err != nil {
		return err
	}
	defer d.Close()
	return look(d)
}

func (open driverStore) Look(ctx context.Context, prefix, name string) (held bool, left time.Duration, err error) {
	err = open.with(ctx, prefix, func(d backend.Driver) error {
		info, err := core.Of(d).Inspect(ctx, name)
		held, left = info.Held, info.ExpiresIn
		return err
	})
	return held, left, err
}

func (open driverStore) Take(ctx context.Context, prefix, name string) error {
	return open.with(ctx, prefix, func(d backend.Driver) error { return d.Break(ctx, name) })
}

func (open driverStore) Left(ctx context.Context, prefix string) (left []string, err error) {
	err = open.with(ctx, prefix, func(d backend.Driver) error {
		for info, err := range core.Of(d).List(ctx, "") {
			if err != nil {
				return err
			}
			left = append(left, info.Name)
		}
		return nil
	})
	return left, err
}
