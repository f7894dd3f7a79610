package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// perTxn is how many entries one transaction is about: servers allow 128 operations by default.
const perTxn = 120

// Keep implements backend.Driver: to extend, a keep-alive for each lease that the holds are under,
// many over one stream; and beside that a look whether their entries are there: if the lease lives
// after it, an entry that was there has been there all the time.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	holds := make([]*hold, len(cs))
	var written, fresh []int // those with a first renewal are to have their tokens written
	for i, c := range cs {
		holds[i], errs[i] = holdOf(c)
		switch {
		case errs[i] != nil:
		case extend && !holds[i].written.Load():
			fresh = append(fresh, i)
		default:
			written = append(written, i)
		}
	}
	all := slices.Concat(written, fresh)
	var extending sync.WaitGroup
	var extended []error
	if extend {
		some := make([]*hold, len(all))
		for n, i := range all {
			some[n] = holds[i]
		}
		extending.Go(func() { extended = s.extend(ctx, some) })
	}
	s.each(ctx, holds, errs, written, s.lookAt)
	s.each(ctx, holds, errs, fresh, s.writeAt)
	extending.Wait()
	for n, err := range extended {
		if i := all[n]; err != nil && !errors.Is(errs[i], backend.ErrLost) {
			errs[i] = err
		}
	}
	return errs
}

// extend renews the leases of holds.
func (s *store) extend(ctx context.Context, holds []*hold) []error {
	var ls []*lease
	at := map[*lease]int{}
	for _, h := range holds {
		if _, ok := at[h.lease]; !ok {
			at[h.lease] = len(ls)
			ls = append(ls, h.lease)
		}
	}
	kept := s.leases.keepAlive(ctx, ls)
	errs := make([]error, len(holds))
	for i, h := range holds {
		errs[i] = kept[at[h.lease]]
	}
	return errs
}

// each asks about the holds with these indexes, as many at a time as fit into one transaction.
func (s *store) each(
	ctx context.Context, holds []*hold, errs []error, which []int, ask func(context.Context, []*hold) []error,
) {
	for part := range slices.Chunk(which, perTxn) {
		some := make([]*hold, len(part))
		for n, i := range part {
			some[n] = holds[i]
		}
		for n, err := range ask(ctx, some) {
			errs[part[n]] = err
		}
	}
}

// lookAt returns ErrLost for the holds whose entry is gone.
func (s *store) lookAt(ctx context.Context, holds []*hold) []error {
	errs := make([]error, len(holds))
	ifs, els := make([]clientv3.Cmp, len(holds)), make([]clientv3.Op, len(holds))
	for n, h := range holds {
		ifs[n] = h.same()
		els[n] = clientv3.OpGet(h.key, clientv3.WithKeysOnly())
	}
	p := s.history.now()
	resp, err := s.commit(ctx, ifs, nil, els)
	if err != nil {
		return allOf(errs, err)
	}
	s.history.see(p, resp.Header)
	if resp.Succeeded {
		return errs
	}
	for n, h := range holds {
		if kvs := resp.Responses[n].GetResponseRange().GetKvs(); len(kvs) == 0 || kvs[0].CreateRevision != h.rev {
			errs[n] = backend.ErrLost
		}
	}
	return errs
}

// writeAt is lookAt for holds that are renewed for the first time: it also writes
// the token into each entry, where Inspect finds it however long the lock is held.
func (s *store) writeAt(ctx context.Context, holds []*hold) []error {
	errs := make([]error, len(holds))
	ops := make([]clientv3.Op, len(holds))
	for n, h := range holds {
		ops[n] = clientv3.OpTxn([]clientv3.Cmp{h.same()},
			[]clientv3.Op{clientv3.OpPut(h.key, h.value.String(), clientv3.WithIgnoreLease())}, nil)
	}
	p := s.history.now()
	resp, err := s.commit(ctx, nil, ops, nil)
	switch {
	case errors.Is(err, rpctypes.ErrNoSpace): // the lock is kept; Inspect reads its token from the store's history
		return s.lookAt(ctx, holds)
	case err != nil:
		return allOf(errs, err)
	}
	s.history.see(p, resp.Header)
	for n, h := range holds {
		if !resp.Responses[n].GetResponseTxn().GetSucceeded() {
			errs[n] = backend.ErrLost
			continue
		}
		h.written.Store(true)
	}
	return errs
}

func allOf(errs []error, err error) []error {
	for i := range errs {
		errs[i] = err
	}
	return errs
}
