package zookeeper

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Inspect implements backend.Driver. ZooKeeper's leases have no expiry that can be read, so ExpiresIn is 0.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	s, err := d.any(ctx)
	if err != nil {
		return backend.Info{}, err
	}
	defer s.unuse()
	// A server may be behind the others: it catches up first.
	if err := s.sync(ctx); err != nil {
		return backend.Info{}, err
	}
	i, _, err := s.inspect(ctx, name)
	return i, err
}

// inspect describes a name; of a holder that is ours with what its node says.
func (s *session) inspect(ctx context.Context, name string) (backend.Info, record, error) {
	lock := s.d.at.lock(name)
	for {
		i := backend.Info{Name: name}
		l, err := s.line(ctx, lock)
		if errors.Is(err, zk.ErrNoNode) {
			return i, record{}, nil
		}
		if l.strange != "" {
			i.Held = true
			return i, record{}, nil
		}
		if err != nil {
			return i, record{}, err
		}
		i.Waiters = len(l.waiters)
		if l.held == "" {
			return i, record{}, nil
		}
		n, err := get(ctx, s, lock+"/"+l.held)
		if errors.Is(err, zk.ErrNoNode) {
			continue // it went in between
		}
		if err != nil {
			return i, record{}, err
		}
		i.Held, i.Leaked = true, n.stat.EphemeralOwner == 0
		r, _ := readRecord(n.data)
		i.Token, i.Owner = r.token, r.owner
		return i, r, nil
	}
}

// List implements backend.Driver.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		s, err := d.any(ctx)
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		defer s.unuse()
		names, err := s.names(ctx, prefix)
		if err != nil {
			yield(backend.Info{}, err)
			return
		}
		for len(names) > 0 {
			some := names[:min(len(names), maxLooks)]
			names = names[len(some):]
			infos, errs := make([]backend.Info, len(some)), make([]error, len(some))
			var wg sync.WaitGroup
			for i, name := range some {
				wg.Go(func() { infos[i], _, errs[i] = s.inspect(ctx, name) })
			}
			wg.Wait()
			for i, info := range infos {
				if errs[i] != nil {
					yield(backend.Info{}, errs[i])
					return
				}
				if (info.Held || info.Waiters > 0) && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// names lists the names that have a node.
func (s *session) names(ctx context.Context, prefix string) ([]string, error) {
	if err := s.sync(ctx); err != nil {
		return nil, err
	}
	children, err := call(ctx, s, func(c *zk.Conn) ([]string, error) {
		children, _, err := c.Children(s.d.at.locks)
		return children, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	var names []string
	for _, c := range children {
		if name, ok := decode(c); ok && strings.HasPrefix(name, prefix) && backend.CheckName(name) == nil {
			names = append(names, name)
		}
	}
	return names, err
}

// Break implements backend.Driver.
func (d *Driver) Break(ctx context.Context, name string) error {
	s, err := d.any(ctx)
	if err != nil {
		return err
	}
	defer s.unuse()
	lock := d.at.lock(name)
	if err := s.sync(ctx); err != nil {
		return err
	}
	l, err := s.line(ctx, lock)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case l.strange != "":
		return s.erase(ctx, lock, []string{lock + "/" + l.strange})
	case err != nil:
		return err
	case l.held == "":
		return nil
	}
	return s.erase(ctx, lock, []string{lock + "/" + l.held})
}

// Raise implements backend.Raiser. It raises the counter of every bucket, also those that no name has used.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("the floor %d: want 0 to 2^53-2", floor)
	}
	s, err := d.any(ctx)
	if err != nil {
		return err
	}
	defer s.unuse()
	return d.eachBucket(func(b *bucket) error {
		err := b.raise(ctx, s, floor)
		if cutOff(err) { // once more, on the next connection
			err = b.raise(ctx, s, floor)
		}
		return err
	})
}

// raise makes every later token of a bucket greater than floor.
func (b *bucket) raise(ctx context.Context, s *session, floor backend.Token) error {
	for {
		b.forget()
		if err := b.load(ctx, s); err != nil {
			return err
		}
		now := b.state()
		t := max(now.last, floor)
		_, err := call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(b.path, number(t), now.version) })
		if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) {
			continue
		}
		b.forget()
		return err
	}
}
