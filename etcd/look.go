package etcd

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// page is how many entries a request for many reads.
	page = 1000
	// abreast is how many locks are described at a time: one that its holder has not renewed takes
	// two requests.
	abreast = 64
)

// Look implements backend.Driver. The token of a lock whose holder has not renewed it yet is read
// from the base as it was at the grant; it is 0 if the store has compacted that moment.
//
// A grant that is under way compares the gates, and behind a gate the only heirs are holders. So once a gate stands, no
// entry becomes a holder's that it would not admit, and the pages need not be of one moment to be strict.
func (s *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		var left sync.Map
		var some []queue
		flush := func() bool {
			infos, err := s.describeAll(ctx, r, some, &left)
			if err != nil {
				yield(backend.Info{}, err)
				return false
			}
			some = some[:0]
			for _, i := range infos {
				if !yield(i, nil) {
					return false
				}
			}
			return true
		}
		for q, err := range s.queues(ctx, r) {
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			if some = append(some, q); len(some) == abreast && !flush() {
				return
			}
		}
		flush()
	}
}

// queue is the queue of one name.
type queue struct {
	name string
	kvs  []*mvccpb.KeyValue
}

// queues yields the queues of a range.
func (s *store) queues(ctx context.Context, r backend.Range) iter.Seq2[queue, error] {
	return func(yield func(queue, error) bool) {
		from := s.keys.locks() + encode(r.Prefix)
		if r.Name != "" {
			from = s.keys.queue(r.Name)
		}
		end, q := clientv3.GetPrefixRangeEnd(from), queue{name: r.Name}
		for more := true; more; {
			resp, err := s.get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
			if err != nil {
				yield(queue{}, err)
				return
			}
			for _, kv := range resp.Kvs {
				name, _, ok := s.keys.split(string(kv.Key))
				if !ok {
					continue // not an entry of ours
				}
				if name != q.name {
					if len(q.kvs) > 0 && !yield(q, nil) {
						return
					}
					q = queue{name: name}
				}
				q.kvs = append(q.kvs, kv)
			}
			if more = resp.More; more {
				from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
			}
		}
		if len(q.kvs) > 0 || r.Name != "" {
			yield(q, nil)
		}
	}
}

// describe makes the Info of one queue. left remembers what remains of the leases asked for.
func (s *store) describe(ctx context.Context, q queue, left *sync.Map) (backend.Info, error) {
	i := backend.Info{Name: q.name}
	if len(q.kvs) == 0 {
		return i, nil
	}
	first := firstOf(q.kvs)
	v, known := parse(string(first.Value))
	if r := s.asks(q.name, first); r.Mode != backend.Exclusive {
		return s.describeGroup(ctx, q, r.Mode, left)
	}
	i.Waiters = len(q.kvs)
	if known && !v.held && !v.next {
		return i, nil // the lock is free for the first waiter, which has not taken it yet
	}
	i.Held, i.Waiters = true, len(q.kvs)-1
	i.Leaked = first.Lease == 0
	if known {
		i.Owner, i.Token = v.owner, v.token
		if i.Token == 0 {
			at := first.ModRevision
			if v.next {
				at = first.CreateRevision
			}
			var err error
			if i.Token, err = s.tokenOf(ctx, first, at, v.reserve); err != nil {
				return i, err
			}
		}
	}
	if i.Leaked {
		return i, nil
	}
	var err error
	i.ExpiresIn, err = s.left(ctx, first.Lease, left)
	return i, err
}

// firstOf returns the entry that was created first.
func firstOf(kvs []*mvccpb.KeyValue) *mvccpb.KeyValue {
	return slices.MinFunc(kvs, func(a, b *mvccpb.KeyValue) int {
		return cmp.Compare(a.CreateRevision, b.CreateRevision)
	})
}

// asks returns what an entry of a name asks for.
func (s *store) asks(name string, kv *mvccpb.KeyValue) *backend.Request {
	return asks(strings.TrimPrefix(string(kv.Key), s.keys.queue(name)), string(kv.Value))
}

// describeGroup is describe where the first entry is of a mode that several may hold in.
func (s *store) describeGroup(
	ctx context.Context, q queue, mode backend.Mode, left *sync.Map,
) (backend.Info, error) {
	i := backend.Info{Name: q.name}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs error
	for _, kv := range q.kvs {
		v, _ := parse(string(kv.Value))
		if !v.held || s.asks(q.name, kv).Mode != mode {
			continue
		}
		h := backend.Held{
			ID: idOf(string(kv.Key)), Owner: v.owner, Token: v.tokenOf(kv.CreateRevision), Slot: v.slot,
		}
		i.Held, i.Mode, i.Owner, i.Token = true, mode, v.owner, max(i.Token, h.Token)
		i.Holders++
		wg.Go(func() {
			var err error
			if kv.Lease != 0 {
				h.ExpiresIn, err = s.left(ctx, kv.Lease, left)
			}
			mu.Lock()
			defer mu.Unlock()
			i.Leaked = i.Leaked || kv.Lease == 0
			i.Holds = append(i.Holds, h)
			i.ExpiresIn = max(i.ExpiresIn, h.ExpiresIn)
			errs = errors.Join(errs, err)
		})
	}
	wg.Wait()
	i.Holds = backend.FirstHolds(i.Holds)
	if i.Waiters = len(q.kvs) - i.Holders; i.Holders > 1 {
		i.Owner = ""
	}
	return i, errs
}

// tokenOf returns the token of an entry that was granted at a revision, or put there as an heir's.
func (s *store) tokenOf(ctx context.Context, kv *mvccpb.KeyValue, at int64, reserve int) (backend.Token, error) {
	resp, err := s.get(ctx, s.keys.base(), clientv3.WithRev(at))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return 0, nil
	}
	if err != nil || len(resp.Kvs) == 0 {
		return 0, err
	}
	t, _, err := tokenAt(resp.Kvs[0], kv.CreateRevision, at, reserve)
	return t, err
}

// left returns what is left of a lease, in whole seconds, rounded down; but a little in its last second,
// and where it is over just now, for 0 would say that it has no end. known has those that were asked for before.
func (s *store) left(ctx context.Context, id int64, known *sync.Map) (time.Duration, error) {
	ask, _ := known.LoadOrStore(id, sync.OnceValues(func() (time.Duration, error) {
		resp, err := do(ctx, func(ctx context.Context) (*clientv3.LeaseTimeToLiveResponse, error) {
			return s.client.TimeToLive(ctx, clientv3.LeaseID(id))
		})
		if err != nil {
			return 0, err
		}
		return max(time.Duration(resp.TTL)*time.Second, time.Millisecond), nil
	}))
	return ask.(func() (time.Duration, error))()
}

// describeAll describes queues at the same time.
func (s *store) describeAll(
	ctx context.Context, r backend.Range, qs []queue, left *sync.Map,
) ([]backend.Info, error) {
	infos, errs := make([]backend.Info, len(qs)), make([]error, len(qs))
	var wg sync.WaitGroup
	for i, q := range qs {
		wg.Go(func() {
			infos[i], errs[i] = s.describe(ctx, q, left)
			if r.Strict {
				strictly(&infos[i], q.kvs)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// strictly tells a drain more of a queue: the keys of strangers hold the lock, or will hold it by
// themselves when they are first.
func strictly(i *backend.Info, kvs []*mvccpb.KeyValue) {
	var moves []string
	for _, kv := range kvs {
		v, known := parse(string(kv.Value))
		switch {
		case !known, v.held && !v.both:
			i.Held, i.Both = true, ""
			return
		case v.held:
			moves = append(moves, v.move)
		}
	}
	if len(moves) == 1 {
		i.Held, i.Both = true, moves[0]
	}
}
