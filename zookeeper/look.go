package zookeeper

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxLooks is how many requests for one call are under way at once. The client library takes a
// goroutine for each, so there are few at a time.
const maxLooks = 32

// abreast calls do for 0 to n-1, several at once.
func abreast(n int, do func(int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(n, maxLooks) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// Look implements backend.Driver. ZooKeeper's leases have no expiry that can be read, so ExpiresIn
// is 0. It is always strict: what it reads is at least as new as the call, and a lock that was held
// when the names were listed has a node since.
func (st *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		s, err := st.any(ctx)
		if err == nil {
			err = s.sync(ctx) // a server may be behind the others
		}
		names := []string{r.Name}
		if err == nil && r.Name == "" {
			names, err = s.names(ctx, r.Prefix)
		}
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for some := range slices.Chunk(names, maxLooks) {
			infos, errs := make([]backend.Info, len(some)), make([]error, len(some))
			abreast(len(some), func(i int) { infos[i], errs[i] = s.inspect(ctx, some[i]) })
			for i, info := range infos {
				if errs[i] != nil {
					yield(backend.Info{}, errs[i])
					return
				}
				if (info.Held || info.Waiters > 0 || r.Name != "") && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// names lists the names that have a node.
func (s *session) names(ctx context.Context, prefix string) ([]string, error) {
	children, err := s.children(ctx, s.st.at.locks)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	var names []string
	for _, c := range children {
		name, ok := decode(c)
		if ok && strings.HasPrefix(name, prefix) && backend.CheckName(name) == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// inspect describes a name.
func (s *session) inspect(ctx context.Context, name string) (backend.Info, error) {
	lock := s.st.at.lock(name)
	for {
		i := backend.Info{Name: name}
		l, err := s.line(ctx, lock)
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return i, nil
		case l.strange != "":
			i.Held = true
			return i, nil
		case err != nil:
			return i, err
		}
		i.Waiters = len(l.waiters)
		if len(l.holds) == 0 {
			return i, nil
		}
		i.Held = true
		if i.Mode = l.holds[0].ask.Mode; i.Mode != backend.Exclusive {
			if err := s.describe(ctx, lock, l, &i); err != nil || i.Holders > 0 {
				return i, err
			}
			continue // they went in between
		}
		h := s.show(ctx, lock, l.holds)[0]
		if h.err == nil && !h.there {
			continue // it went in between
		}
		i.Leaked, i.Token, i.Owner, i.Both = h.leaked, h.Token, h.Owner, h.Both
		return i, h.err
	}
}

// describe describes the holds of a group. None takes part in a migration: package migrate has no such modes.
func (s *session) describe(ctx context.Context, lock string, l line, i *backend.Info) error {
	for _, h := range s.show(ctx, lock, l.holds) {
		if h.err != nil {
			return h.err
		}
		if !h.there {
			continue
		}
		i.Holders++
		i.Leaked = i.Leaked || h.leaked
		i.Token = max(i.Token, h.Token)
		if len(i.Holds) < backend.MostHolds {
			i.Holds = append(i.Holds, backend.Held{ID: h.nonce, Owner: h.Owner, Token: h.Token, Slot: h.slot})
		}
	}
	if i.Holders == 1 {
		i.Owner = i.Holds[0].Owner
	}
	return nil
}

// Break implements backend.Driver.
func (st *store) Break(ctx context.Context, name string) error {
	s, err := st.any(ctx)
	if err != nil {
		return err
	}
	lock := st.at.lock(name)
	if err := s.sync(ctx); err != nil {
		return err
	}
	l, err := s.line(ctx, lock)
	for l.strange != "" { // nodes of another program, beside which nobody can lock
		strange := lock + "/" + l.strange
		if err = s.erase(ctx, lock, []string{strange}); errors.Is(err, zk.ErrNotEmpty) {
			return backend.Invalid("the node %s, which another program put there, has nodes under it: delete it",
				strange)
		}
		if err != nil {
			return err
		}
		l, err = s.line(ctx, lock)
	}
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case err != nil || len(l.holds) == 0:
		return err
	case l.held() != "":
		return s.erase(ctx, lock, []string{lock + "/" + l.held()})
	}
	return s.breakAll(ctx, lock, l)
}
