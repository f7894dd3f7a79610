package zookeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// gates is what a store knows of the gates of its keyspace: the data of the node that all locks are
// under. A multi that grants is done only if that node has the version known, so what is known is
// true then. They are read before the first grant, after a change, and after a broken connection:
// the node's version may stand for other data where the servers have lost theirs.
type gates struct {
	mu    sync.Mutex
	known bool
	now   gateSet
}

// gateSet are the gates as of one version of the node.
type gateSet struct {
	version int32 // the node's
	list    []backend.Gate
	record  *backend.Record // as the engine has them; nil: none
}

// load returns the gates as they are known, and asks the servers if they are not; fresh: it asks
// what the leader has, at a moment after the call.
func (gs *gates) load(ctx context.Context, s *session, fresh bool) (gateSet, error) {
	gs.mu.Lock()
	known, now := gs.known, gs.now
	gs.mu.Unlock()
	if known && !fresh {
		return now, nil
	}
	return together(ctx, s, "gates", fresh, func(ctx context.Context) (gateSet, error) {
		set, err := s.readGates(ctx)
		if err == nil {
			gs.mu.Lock()
			gs.known, gs.now = true, set
			gs.mu.Unlock()
		}
		return set, err
	})
}

func (s *session) readGates(ctx context.Context) (set gateSet, err error) {
	var n node
	if err := s.ensured(ctx, func() (err error) {
		n, err = synced(ctx, s, s.st.at.locks)
		return err
	}); err != nil {
		return set, err
	}
	set.version = n.stat.Version
	if len(n.data) > 0 {
		if set.list, err = backend.DecodeGates(n.data); err != nil {
			return set, fmt.Errorf("the node %s: %w", s.st.at.locks, err)
		}
		set.record = &backend.Record{Key: backend.GateKey, Data: n.data, Version: string(n.data)}
	}
	return set, nil
}

// judged returns the gates if they are those by which a claim was judged; with ErrGates they are
// others. A claim is refused only by what the leader has.
func (gs *gates) judged(
	ctx context.Context, s *session, by *backend.Record,
) (gateSet, error) {
	set, err := gs.load(ctx, s, false)
	if err == nil && !sameVersion(set.record, by) {
		set, err = gs.load(ctx, s, true)
		if err == nil && !sameVersion(set.record, by) {
			err = backend.ErrGates
		}
	}
	return set, err
}

func sameVersion(a, b *backend.Record) bool {
	return a == b || a != nil && b != nil && a.Version == b.Version
}

// outdated notes that the gates are not of a version any more.
func (gs *gates) outdated(version int32) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if gs.now.version == version {
		gs.known = false
	}
}

// forget makes the next grant ask the servers.
func (gs *gates) forget() {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	gs.known = false
}

// Load implements backend.Mover. The ensemble is one place.
func (st *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		s, err := st.any(ctx)
		var all []backend.Record
		switch {
		case err != nil:
		case strings.HasPrefix(prefix, backend.GateKey):
			all, err = s.loadGates(ctx)
		default:
			all, err = s.reports(ctx, -1)
		}
		n := 0
		for _, r := range all {
			if strings.HasPrefix(r.Key, prefix) && err == nil {
				if n++; !yield(r, nil) {
					return
				}
			}
		}
		switch {
		case err != nil:
			yield(backend.Record{}, err)
		case n == 0 && prefix == backend.GateKey:
			yield(backend.Record{Key: prefix}, nil)
		}
	}
}

func (s *session) loadGates(ctx context.Context) ([]backend.Record, error) {
	set, err := s.st.gates.load(ctx, s, true)
	all := make([]backend.Record, len(set.list))
	for i, g := range set.list {
		all[i] = recordOf(g)
	}
	return all, err
}

// recordOf is one gate of the list.
func recordOf(g backend.Gate) backend.Record {
	data, _ := json.Marshal(g) // of strings and numbers: never fails
	return backend.Record{Key: backend.GateKey + g.Move, Data: data, Version: string(data)}
}

// Swap implements backend.Mover.
func (st *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	s, err := st.any(ctx)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if rest, ok := strings.CutPrefix(r.Key, backend.ClientKey); ok {
			move, id, _ := strings.Cut(rest, "\x00")
			err = s.saveReport(ctx, st.at.client(move, id), r.Data, keep)
		} else if err = s.swapGate(ctx, r); cutOff(err) {
			err = s.swapGate(ctx, r) // on the next connection: it finds whether it was done
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// swapGate replaces one gate of the list. A gate that is there already is not written again.
func (s *session) swapGate(ctx context.Context, r backend.Record) error {
	set, err := s.st.gates.load(ctx, s, true)
	if err != nil {
		return err
	}
	var was backend.Record
	next := slices.DeleteFunc(slices.Clone(set.list), func(g backend.Gate) bool {
		same := backend.GateKey+g.Move == r.Key
		if same {
			was = recordOf(g)
		}
		return same
	})
	switch {
	case bytes.Equal(was.Data, r.Data):
		return nil
	case r.Version != was.Version && r.Version != backend.AnyVersion:
		return backend.ErrGates
	}
	if r.Data != nil {
		one, err := backend.DecodeGates(slices.Concat([]byte("["), r.Data, []byte("]")))
		if err != nil {
			return err
		}
		next = append(next, one...)
	}
	_, err = call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) {
		return c.Set(s.st.at.locks, backend.EncodeGates(next), set.version)
	})
	if err == nil {
		s.st.gates.outdated(set.version)
	}
	if errors.Is(err, zk.ErrBadVersion) || errors.Is(err, zk.ErrNoNode) {
		err = backend.ErrGates // this gate or another one has changed
	}
	return err
}

// A client's report is a persistent node, for an ephemeral one would go with a session that is
// shorter. The servers do not end it by themselves: it counts as forgotten once it is older than it
// was to be kept, by the leader's clock, and is then deleted by the next call of Load, or by the
// first report of some client.

// saved is the data of such a node.
type saved struct {
	Keep   time.Duration   `json:"keep"` // in nanoseconds
	Client json.RawMessage `json:"client"`
}

// saveReport writes or deletes a report, whatever is there. The first one of a client also deletes
// some of those that are to be forgotten.
func (s *session) saveReport(
	ctx context.Context, path string, data []byte, keep time.Duration,
) error {
	if data == nil {
		return s.remove(ctx, path)
	}
	if keep <= 0 {
		return backend.Invalid("a report to be kept for %v: want more than 0", keep)
	}
	data, err := json.Marshal(saved{keep, data})
	if err != nil {
		return err
	}
	_, err = call(ctx, s, func(c *zk.Conn) (*zk.Stat, error) { return c.Set(path, data, -1) })
	if !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	create := func() error {
		_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
			return c.Create(path, data, zk.FlagPersistent, s.st.acl)
		})
		return err
	}
	if err = create(); errors.Is(err, zk.ErrNoNode) {
		if err := s.ensurePath(ctx, s.st.at.clients); err != nil {
			return err
		}
		err = create()
	}
	if err == nil {
		_, _ = s.reports(ctx, maxLooks) // what it cannot delete the next one will
	}
	return err
}

// reports reads the reports of clients, as the leader has them, or some of them, and deletes those
// that are to be forgotten.
func (s *session) reports(ctx context.Context, most int) ([]backend.Record, error) {
	if err := s.sync(ctx); err != nil {
		return nil, err
	}
	nodes, err := s.children(ctx, s.st.at.clients)
	if errors.Is(err, zk.ErrNoNode) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if most >= 0 && most < len(nodes) {
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		nodes = nodes[:most]
	}
	now := s.st.clock.now()
	all, errs := make([]backend.Record, len(nodes)), make([]error, len(nodes))
	abreast(len(nodes), func(i int) { all[i], errs[i] = s.readReport(ctx, nodes[i], now) })
	all = slices.DeleteFunc(all, func(r backend.Record) bool { return r.Key == "" })
	return all, errors.Join(errs...)
}

// readReport reads a report; it has no key if it is to be forgotten at now, in µs.
func (s *session) readReport(
	ctx context.Context, name string, now int64,
) (r backend.Record, err error) {
	path := s.st.at.clients + "/" + name
	n, err := get(ctx, s, path)
	if errors.Is(err, zk.ErrNoNode) {
		return r, nil
	}
	if err != nil {
		return r, err
	}
	var text saved
	first, second, whole := strings.Cut(name, clientCut)
	move, ok1 := decode(first)
	id, ok2 := decode(second)
	if err := json.Unmarshal(n.data, &text); err != nil || !whole || !ok1 || !ok2 {
		return r, backend.Invalid("the node %s holds %.40q, which is no client's report: "+
			"some other program has written it", path, n.data)
	}
	if now-n.stat.Mtime*1000 < text.Keep.Microseconds() {
		r.Key, r.Data, r.Version = backend.ClientKey+move+"\x00"+id, text.Client, string(text.Client)
		return r, nil
	}
	return r, s.removeAs(ctx, path, n.stat.Version) // what was reported anew just now stays
}

// Source implements backend.Mover: the greatest number that was granted, reserved or raised to.
func (st *store) Source(ctx context.Context) (backend.Token, error) {
	s, err := st.any(ctx)
	if err == nil {
		err = s.sync(ctx)
	}
	if err != nil {
		return 0, err
	}
	w, err := s.readBase(ctx)
	if err != nil || w.last == "" {
		return 0, err
	}
	return w.most(), nil
}

// Raise implements backend.Mover: for all names and for a holder's it is one multi.
func (st *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if floor < 0 || floor >= maxToken {
		return backend.Invalid("the floor %d: want 0 to 2^53-2", floor)
	}
	if held == nil {
		s, err := st.any(ctx)
		if err != nil {
			return err
		}
		return st.base.raise(ctx, s, floor)
	}
	p := st.find(held)
	if p == nil || !p.isGranted() || p.lapsed() {
		return backend.ErrLost
	}
	same := &zk.CheckVersionRequest{Path: p.held, Version: -1}
	return ended(st.base.raise(ctx, p.s, floor, same))
}

// raise makes every later token greater than floor, if a node that is to be there is.
func (b *base) raise(ctx context.Context, s *session, floor backend.Token, there ...any) error {
	for {
		if err := b.load(ctx, s, floor); err != nil {
			return err
		}
		o := b.state()
		if !o.known {
			continue
		}
		raised, err := o.exceed(floor, true, s.st.clock.now())
		if err != nil {
			return err
		}
		// The second node tells an election's anchor that numbers up to this zxid are not to be granted.
		ops := append(o.keep(s.st.at, raised), &zk.SetDataRequest{Path: s.st.at.tokens + "/" + o.last, Version: -1})
		i, err := s.multi(ctx, slices.Concat(there, ops)...)
		switch {
		case err == nil:
			b.saw(o, 0, raised, floor)
			return nil
		case i >= 0 && i < len(there) && errors.Is(err, zk.ErrNoNode):
			return backend.ErrLost
		case errors.Is(err, zk.ErrBadVersion), errors.Is(err, zk.ErrNoNode):
			b.outdated(o)
		default:
			return err
		}
	}
}

// ended returns an error of a holder's session as its holder sees it.
func ended(err error) error {
	if errors.Is(err, errEnded) {
		return &backend.LostError{Reason: backend.SessionLost}
	}
	return err
}
