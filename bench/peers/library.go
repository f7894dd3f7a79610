package peers

import (
	"context"
	"fmt"
	"slices"
)

// A Library is one way to lock.
type Library struct {
	Name     string `json:"name"`
	Settings string `json:"settings"` // that differ from its defaults, and why
	Source   string `json:"source"`   // where it recommends them
	open     func(ctx context.Context, at place) (locker, error)
}

// place is where a library works. It travels to child processes.
type place struct {
	Addrs  []string
	Prefix string // of its own names
	Mode   string // of Postgres: row or lease
}

// mutex is what one goroutine locks one name with. Lock waits.
type mutex struct {
	lock, unlock func(context.Context) error
	renew        func(context.Context) error // nil: not by hand
}

// locker is a library's client, one in each process.
type locker struct {
	mutex func(ctx context.Context, name string) (mutex, error)
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
