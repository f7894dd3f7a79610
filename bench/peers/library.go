package peers

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/bench/internal/raw"
)

// A Library is one way to lock.
type Library struct {
	Name     string `json:"name"`
	Settings string `json:"settings"` // that differ from its defaults, and why
	Source   string `json:"source"`   // where it recommends them
	open     opener
}

type opener = func(ctx context.Context, at place) (locker, error)

// place is where a library works. It travels to child processes.
type place struct {
	Addrs  []string
	Prefix string // of its own names
}

// url returns the URL of the place, with these keys of a query.
func (at place) url(scheme string, keys url.Values) *url.URL {
	u := &url.URL{Scheme: scheme, Host: strings.Join(at.Addrs, ","), RawQuery: keys.Encode()}
	if scheme == "postgres" {
		u.User, u.Path = url.User("postgres"), "/postgres"
	}
	return u
}

// locker is a library's client, one in each process.
type locker struct {
	mutex func(ctx context.Context, name string) (measure.Mutex, error)
	// hold locks a name and keeps it renewed until close; nil: it is not asked for.
	hold  func(ctx context.Context, name string) error
	close func()
}

// Libraries returns all that is compared, ours first.
func Libraries() []Library {
	return slices.Concat(ours, onRedis, onEtcd, onZooKeeper, onPostgres)
}

func find(name string) (Library, error) {
	all := Libraries()
	if i := slices.IndexFunc(all, func(l Library) bool { return l.Name == name }); i >= 0 {
		return all[i], nil
	}
	return Library{}, fmt.Errorf("no library %q", name)
}

// byHand is a store as one locks in it by hand.
func byHand(scheme string, keys url.Values, waits bool) opener {
	return func(ctx context.Context, at place) (locker, error) {
		where := raw.Place{URL: at.url(scheme, keys), Prefix: at.Prefix + ":", ID: at.Prefix}
		s, err := raw.Open(ctx, where)
		if err != nil {
			return locker{}, err
		}
		return locker{
			mutex: func(ctx context.Context, name string) (measure.Mutex, error) {
				return s.Mutex(ctx, name, waits)
			},
			close: func() { _ = s.Close() }, // the server ends next
		}, nil
	}
}

// anew opens the library for each cycle and closes it after it.
func (lib Library) anew(at place) measure.Mutex {
	var l locker
	var m measure.Mutex
	return measure.Mutex{
		Lock: func(ctx context.Context) (err error) {
			if l, err = lib.open(ctx, at); err != nil {
				return err
			}
			if m, err = l.mutex(ctx, "open"); err != nil {
				return err
			}
			return m.Lock(ctx)
		},
		Unlock: func(ctx context.Context) error {
			defer l.close()
			return m.Unlock(ctx)
		},
	}
}

// anew locks a new name in each cycle.
func (l locker) anew(name string) measure.Mutex {
	var m measure.Mutex
	n := 0
	return measure.Mutex{
		Lock: func(ctx context.Context) (err error) {
			n++
			if m, err = l.mutex(ctx, fmt.Sprint(name, "-", n)); err != nil {
				return err
			}
			return m.Lock(ctx)
		},
		Unlock: func(ctx context.Context) error { return m.Unlock(ctx) },
	}
}

// made has the clients of a library: one for all goroutines, or one for each.
type made[T any] struct {
	make func(context.Context) (T, error)
	end  func(T) error
	each bool

	mu  sync.Mutex
	all []T
}

func (m *made[T]) get(ctx context.Context) (T, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.all) > 0 && !m.each {
		return m.all[0], nil
	}
	one, err := m.make(ctx)
	if err == nil {
		m.all = append(m.all, one)
	}
	return one, err
}

func (m *made[T]) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.all {
		_ = m.end(one) // what it does not confirm goes with the server
	}
}
