package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// A client's report is a persistent node, for an ephemeral one would go with a session that is shorter. The servers
// do not end it by themselves: it counts as forgotten once it is older than it was to be kept, by the leader's clock, and is then
// deleted by the next call of Clients, or by the first report of some client.

// sampleMost is how many reports of others a client's first one looks at.
const sampleMost = maxLooks

// saved is the data of such a node.
type saved struct {
	Keep   time.Duration  `json:"keep"` // in nanoseconds
	Client backend.Client `json:"client"`
}

// Report implements backend.Gater. The first report that a driver makes of a client also deletes some of those that are to be forgotten.
func (d *Driver) Report(ctx context.Context, c backend.Client, keep time.Duration) error {
	if keep <= 0 {
		return backend.Invalid("a report to be kept for %v: want more than 0", keep)
	}
	data, err := json.Marshal(saved{keep, c})
	if err != nil {
		return err
	}
	s, err := d.any(ctx)
	if err != nil {
		return err
	}
	defer s.unuse()
	path := d.at.client(c.Move, c.ID)
	for tries := 0; ; tries++ {
		stat, err := call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, data, -1) })
		if err == nil {
			d.clock.heard(stat.Mtime)
			return nil
		}
		if !errors.Is(err, zk.ErrNoNode) || tries > 4 {
			return err
		}
		if err := s.firstReport(ctx, path, data); !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
}

// firstReport makes the node of a client's report.
func (s *session) firstReport(ctx context.Context, path string, data []byte) error {
	create := func() error {
		_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
			return c.Create(path, data, zk.FlagPersistent, s.d.acl)
		})
		return err
	}
	err := create()
	if errors.Is(err, zk.ErrNoNode) {
		if err := s.ensurePath(ctx, s.d.at.clients); err != nil {
			return err
		}
		err = create()
	}
	if err != nil {
		return err
	}
	if nodes, err := s.reports(ctx); err == nil {
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		_, _ = s.current(ctx, nodes[:min(len(nodes), sampleMost)]) // what it cannot delete the next one will
	}
	return nil
}

// Withdraw implements backend.Gater.
func (d *Driver) Withdraw(ctx context.Context, c backend.Client) error {
	s, err := d.any(ctx)
	if err != nil {
		return err
	}
	defer s.unuse()
	return s.remove(ctx, d.at.client(c.Move, c.ID))
}

// Clients implements backend.Gater. It deletes the reports, of all migrations, that are to be forgotten.
func (d *Driver) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	s, err := d.any(ctx)
	if err != nil {
		return nil, err
	}
	defer s.unuse()
	nodes, err := s.reports(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.current(ctx, nodes)
	if err != nil {
		return nil, err
	}
	var cs []backend.Client
	for _, c := range all {
		if c.Move == move {
			cs = append(cs, c)
		}
	}
	return cs, nil
}

// reports lists the nodes of reports, as the leader has them.
func (s *session) reports(ctx context.Context) ([]string, error) {
	if err := s.sync(ctx); err != nil {
		return nil, err
	}
	nodes, err := call(ctx, s, func(c *zk.Conn) ([]string, error) {
		nodes, _, err := c.Children(s.d.at.clients)
		return nodes, err
	})
	if errors.Is(err, zk.ErrNoNode) {
		err = nil
	}
	return nodes, err
}

// current reads reports, and deletes those that are to be forgotten.
func (s *session) current(ctx context.Context, nodes []string) ([]backend.Client, error) {
	now, err := s.time(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var cs []backend.Client
	var errs []error
	places := make(chan struct{}, maxLooks)
	var wg sync.WaitGroup
	for _, n := range nodes {
		wg.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			c, there, err := s.readReport(ctx, n, now)
			mu.Lock()
			defer mu.Unlock()
			if there {
				cs = append(cs, c)
			}
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if len(errs) > 0 {
		return nil, errs[0]
	}
	return cs, nil
}

// readReport reads a report if it is not to be forgotten at now, in µs.
func (s *session) readReport(ctx context.Context, name string, now int64) (c backend.Client, there bool, err error) {
	path := s.d.at.clients + "/" + name
	n, err := get(ctx, s, path)
	if errors.Is(err, zk.ErrNoNode) {
		return c, false, nil
	}
	if err != nil {
		return c, false, err
	}
	var r saved
	err = json.Unmarshal(n.data, &r)
	if err != nil || s.d.at.client(r.Client.Move, r.Client.ID) != path {
		return c, false, backend.Invalid("the node %s holds %.40q, which is no client's report: some other program has written it", path, n.data)
	}
	if now-n.stat.Mtime*1000 < r.Keep.Microseconds() {
		return r.Client, true, nil
	}
	_, err = call(ctx, s, func(c *zk.Conn) (struct{}, error) { return struct{}{}, c.Delete(path, n.stat.Version) })
	if errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrBadVersion) { // reported anew just now
		err = nil
	}
	return c, false, err
}
