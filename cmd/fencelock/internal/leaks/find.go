package leaks

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	// standStill is how long a migration's clients must have been silent.
	standStill = 10 * time.Minute
	// changing is how long a change of a gate may take. Some stores keep a gate in several places.
	changing = time.Minute
	// gatesMost bounds the look at the gates of all stores.
	gatesMost = 10 * time.Second
	// recheck is the pause between two looks at a queue whose lock is free.
	recheck = 500 * time.Millisecond
)

// site is one store that is searched.
type site struct {
	name   string // in the configuration; empty for a URL
	locks  *fencelock.Locker
	driver backend.Driver // of locks
}

// openSites opens the store of the URL, or every store of the configuration. It opens the stores of a
// migration one by one, because the migration's client would take part in it.
func openSites(ctx context.Context, a *cli.App) ([]site, error) {
	all, err := a.Stores(nil)
	if err != nil {
		return nil, err
	}
	var sites []site
	for _, p := range all {
		s, err := openSite(ctx, p)
		if err != nil {
			closeSites(sites)
			return nil, of(p.Name, err)
		}
		sites = append(sites, s)
	}
	return sites, nil
}

// of adds the name of the backend in the configuration to an error.
func of(name string, err error) error {
	if name == "" {
		return err
	}
	return fmt.Errorf("backend %s: %w", name, err)
}

func openSite(ctx context.Context, p cli.Store) (site, error) {
	ctx, cancel := context.WithTimeout(ctx, cli.OpenMost)
	defer cancel()
	d, err := backend.Open(ctx, p.URL, func(q *backend.Query) { q.Duration("ttl", 0) })
	if err != nil {
		return site{}, cli.Unanswered(err)
	}
	locks, err := fencelock.New(d)
	if err != nil {
		_ = d.Close() // the first error is the one to report
		return site{}, err
	}
	return site{p.Name, locks, d}, nil
}

func closeSites(sites []site) {
	var all sync.WaitGroup
	for _, s := range sites {
		all.Go(func() { cli.Close(s.locks) })
	}
	all.Wait()
}

// leak is a lock, queue or gate that stays until an operator removes it.
type leak struct {
	kind string // lock, queue or gate
	site string
	name string // of the lock, or of the migration
	why  string
	info *fencelock.Info // of a lock or queue
	gate *backend.Gate
}

// same reports whether two looks have found the same leak.
func (l leak) same(o leak) bool { return l.kind == o.kind && l.site == o.site && l.name == o.name }

// finder searches stores for leaks.
type finder struct {
	sites    []site
	prefix   string
	finished []string // migrations
}

// look searches every store. Its result is sorted.
func (f *finder) look(ctx context.Context) ([]leak, error) {
	var found []leak
	for _, s := range f.sites {
		some, err := f.lookAt(ctx, s)
		if err != nil {
			return nil, of(s.name, err)
		}
		found = append(found, some...)
	}
	gates, err := f.gates(ctx)
	return append(found, gates...), err
}

// lookAt searches one store for locks and queues.
func (f *finder) lookAt(ctx context.Context, s site) ([]leak, error) {
	infos, err := cli.List(ctx, s.locks, f.prefix)
	if err != nil {
		return nil, err
	}
	var found []leak
	var suspects []string
	for _, i := range infos {
		switch {
		case i.Leaked:
			found = append(found,
				leak{kind: "lock", site: s.name, name: i.Name, why: "never expires", info: &i})
		case !i.Held && i.Waiters > 0:
			suspects = append(suspects, i.Name)
		}
	}
	orphans, err := untaken(ctx, s, suspects)
	return append(found, orphans...), err
}

// untaken returns the names that stay free although they have waiters, for longer than a dead waiter
// may delay the others. That is normal between a release and the next grant, so a name must be free at
// every look.
func untaken(ctx context.Context, s site, suspects []string) ([]leak, error) {
	patience := s.locks.Traits().DeadWaiter + time.Second
	infos := map[string]fencelock.Info{}
	for began := time.Now(); len(suspects) > 0 && time.Since(began) < patience; {
		select {
		case <-time.After(recheck):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		var still []string
		for _, name := range suspects {
			i, err := s.locks.Inspect(ctx, name)
			if err != nil {
				return nil, err
			}
			if !i.Held && i.Waiters > 0 {
				still = append(still, name)
				infos[name] = i
			}
		}
		suspects = still
	}
	var found []leak
	for _, name := range suspects {
		i := infos[name]
		why := fmt.Sprintf("free for %v and not taken by those who wait for it", patience)
		found = append(found, leak{kind: "queue", site: s.name, name: name, why: why, info: &i})
	}
	return found, nil
}

// gates looks at the gates of all stores. A closed gate is no leak if its migration has an open gate in
// another store.
func (f *finder) gates(ctx context.Context) ([]leak, error) {
	ctx, cancel := context.WithTimeout(ctx, gatesMost)
	defer cancel()
	open := map[string]bool{}
	var closed []leak
	for _, s := range f.sites {
		g, ok := core.Of(s.driver).(core.Gater)
		if !ok {
			continue
		}
		gates, err := g.Gates(ctx)
		if err != nil {
			return nil, gateError(s, err)
		}
		for _, gate := range gates {
			age := time.Since(time.UnixMicro(gate.Epoch))
			if gate.State == backend.GateOpen && !gate.Torn {
				open[gate.Move] = true
				continue
			}
			l := leak{kind: "gate", site: s.name, name: gate.Move, gate: &gate}
			if gate.Torn && age > changing {
				l.why = fmt.Sprintf("torn since %v: who changed it was interrupted",
					age.Round(time.Second))
				closed = append(closed, l)
				continue
			}
			if age <= standStill {
				continue
			}
			clients, err := g.Clients(ctx, gate.Move)
			if err != nil {
				return nil, gateError(s, err)
			}
			alive := func(c backend.Client) bool { return time.Since(c.Reported) <= standStill }
			if !slices.ContainsFunc(clients, alive) {
				l.why = fmt.Sprintf("closed since %v, and nobody reports", age.Round(time.Second))
				closed = append(closed, l)
			}
		}
	}
	closed = slices.DeleteFunc(closed, func(l leak) bool {
		return !l.gate.Torn && (open[l.name] || slices.Contains(f.finished, l.name))
	})
	slices.SortStableFunc(closed, func(a, b leak) int { return strings.Compare(a.name, b.name) })
	return closed, nil
}

func gateError(s site, err error) error {
	return fmt.Errorf("the gates of %s: %w", s.locks.Traits().Name, cli.Unanswered(err))
}
