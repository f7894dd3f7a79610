package etcd

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

const (
	// perTxn is how many entries one transaction is about: servers allow 128 operations by default.
	perTxn = 120
	// streams is how many streams a batch of keep-alives is spread over at most: the server answers the
	// keep-alives of one stream one after the other.
	streams = 8
	// perStream is how many leases are worth a stream of their own.
	perStream = 16
)

// asked is a hold that is asked about, and the place of the answer.
type asked struct {
	*hold
	under *lease
	err   *error
}

// Keep implements backend.Driver: to extend, a keep-alive for each lease that the holds are under,
// many over one stream; and beside that a look whether their entries are there: if the lease lives
// after it, an entry that was there has been there all the time. An entry under the waiters' lease, or
// under one that was given up, moves under another lease, which was renewed before.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	began, errs := backend.Now(), make([]error, len(cs))
	var all, fresh []asked // one of the first renewals of a hold writes its token
	moving := map[slotKey][]asked{}
	for i, c := range cs {
		h, err := holdOf(c)
		if err != nil {
			errs[i] = err
			continue
		}
		switch a := (asked{h, h.lease.Load(), &errs[i]}); {
		case extend && (a.under.kind == waits || a.under.kind == shared && a.under.isDead()):
			moving[slotOf(c.Request)] = append(moving[slotOf(c.Request)], a)
		case extend && h.written.CompareAndSwap(false, true):
			fresh = append(fresh, a)
			fallthrough
		default:
			all = append(all, a)
		}
	}
	var beside sync.WaitGroup
	var extended map[*lease]error
	if extend && len(all) > 0 {
		beside.Go(func() { extended = s.extend(ctx, all) })
	}
	for k, inherited := range moving {
		beside.Go(func() { s.move(ctx, k, began, inherited) })
	}
	if len(fresh) > 0 { // the renewal does not wait for it
		s.flying.Go(func() { spread(fresh, s.note) })
	}
	spread(all, func(part []asked) { s.lookAt(ctx, part) })
	beside.Wait()
	for _, a := range all {
		if err := extended[a.under]; err != nil && !errors.Is(*a.err, backend.ErrLost) {
			*a.err = err
		}
	}
	return errs
}

// spread calls do for each perTxn of all, some at once.
func spread(all []asked, do func([]asked)) {
	if len(all) <= perTxn {
		if len(all) > 0 {
			do(all)
		}
		return
	}
	var wg sync.WaitGroup
	places := make(chan struct{}, streams)
	for part := range slices.Chunk(all, perTxn) {
		places <- struct{}{}
		wg.Go(func() {
			do(part)
			<-places
		})
	}
	wg.Wait()
}

// move renews holds that were inherited: it puts their entries under the lease that they share, which is renewed after
// began. If that lives, both are asked for at once: an heir has little time for its first renewal. Not if it ends
// before the lease that they have: of the two requests the first alone may come to the server.
func (s *store) move(ctx context.Context, k slotKey, began backend.Instant, all []asked) {
	l := s.leases.cur(k, func(l *lease) bool {
		end := l.confirmed().Add(l.granted)
		return l.within(l.granted) && !slices.ContainsFunc(all, func(a asked) bool {
			return end.Sub(a.under.confirmed().Add(a.under.granted)) < 0
		})
	})
	var err error
	var beside sync.WaitGroup
	if l != nil {
		beside.Go(func() { err = s.leases.keepAlive(ctx, []*lease{l})[0] })
	} else if l, err = s.leases.since(ctx, k, began); err != nil {
		for _, a := range all {
			*a.err = err
		}
		return
	}
	spread(all, func(part []asked) { s.moveAt(ctx, part, l) })
	beside.Wait()
	for _, a := range all {
		if err != nil && !errors.Is(*a.err, backend.ErrLost) {
			*a.err = err
		}
	}
}

// extend renews the leases of holds.
func (s *store) extend(ctx context.Context, all []asked) map[*lease]error {
	of := map[*lease]error{}
	for _, a := range all {
		of[a.under] = nil
	}
	ls := slices.Collect(maps.Keys(of))
	for i, err := range s.leases.keepAlive(ctx, ls) {
		of[ls[i]] = err
	}
	return of
}

// lookAt answers ErrLost for the holds whose entry is gone.
func (s *store) lookAt(ctx context.Context, all []asked) {
	ifs, els := make([]*pb.Compare, len(all)), make([]*pb.RequestOp, len(all))
	for i, a := range all {
		ifs[i] = a.same()
		els[i] = opKey(a.key)
	}
	p := s.history.now()
	resp, err := s.commit(ctx, ifs, nil, els)
	if err == nil {
		s.history.see(p, resp.Header)
	}
	for i, a := range all {
		if err != nil {
			*a.err = err
			continue
		}
		if !resp.Succeeded {
			kvs := resp.Responses[i].GetResponseRange().GetKvs()
			if len(kvs) == 0 || kvs[0].CreateRevision != a.rev {
				*a.err = backend.ErrLost
				continue
			}
		}
		a.seen.Store(resp.Header.Revision)
	}
}

// tokens are the operations that write the token into the entries of holds. They put each under that lease; 0: it stays
// under its own.
func tokens(all []asked, under clientv3.LeaseID) []*pb.RequestOp {
	ops := make([]*pb.RequestOp, len(all))
	for i, a := range all {
		put := opPut(a.key, a.value.String(), under)
		put.GetRequestPut().IgnoreLease = under == 0
		ops[i] = opTxn([]*pb.Compare{a.same()}, []*pb.RequestOp{put}, nil)
	}
	return ops
}

// note writes the token of holds, which Inspect finds then however long the lock is held. The next renewal writes it if
// this fails; until then Inspect reads it from the store's history.
func (s *store) note(all []asked) {
	p := s.history.now()
	resp, err := s.commit(s.ctx, nil, tokens(all, 0), nil)
	if err == nil {
		s.history.see(p, resp.Header)
	}
	for _, a := range all {
		a.written.Store(err == nil)
	}
}

// moveAt is lookAt that also moves the entries under another lease, and writes their tokens.
func (s *store) moveAt(ctx context.Context, all []asked, to *lease) {
	p := s.history.now()
	resp, err := s.commit(ctx, nil, tokens(all, to.id), nil)
	if err == nil {
		s.history.see(p, resp.Header)
	}
	for i, a := range all {
		switch {
		case err != nil:
			*a.err = err
		case !resp.Responses[i].GetResponseTxn().GetSucceeded():
			*a.err = backend.ErrLost
		default:
			a.lease.Store(to)
			a.written.Store(true)
			a.seen.Store(resp.Header.Revision)
		}
	}
}

// errLeaseOver says that the server does not know a lease any more.
var errLeaseOver error = &backend.LostError{Reason: backend.SessionLost}

// stream is an open stream of keep-alives. It is kept because opening one asks the
// server to check the password of a user that has one, which is slow on purpose.
type stream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// keepAlive sets the expiry of leases to their TTL from now. Result i is for
// lease i: nil, ErrLost if the server does not know it, or another error, unknown.
func (s *leases) keepAlive(ctx context.Context, ls []*lease) []error {
	errs := make([]error, len(ls))
	each := max((len(ls)+streams-1)/streams, perStream)
	var wg sync.WaitGroup
	for at := 0; at < len(ls); at += each {
		end := min(at+each, len(ls))
		send := func() {
			var sent atomic.Bool
			answers, err := do(ctx, func(ctx context.Context) ([]error, error) {
				if sent.Swap(true) {
					s.hangUp() // the other open streams may lead to the member that has not answered
				}
				return s.exchange(ctx, ls[at:end])
			})
			if err != nil {
				answers = slices.Repeat([]error{err}, end-at)
			}
			copy(errs[at:end], answers)
		}
		if end == len(ls) { // the last one, mostly the only one, on this goroutine
			send()
			break
		}
		wg.Go(send)
	}
	wg.Wait()
	return errs
}

// exchange renews leases over a stream that is open already, else over a new one.
func (s *leases) exchange(ctx context.Context, ls []*lease) ([]error, error) {
	for {
		st, old, err := s.stream(ctx)
		if err != nil {
			return nil, err
		}
		stop := context.AfterFunc(ctx, st.cancel)
		answers, err := st.exchange(ls)
		if !stop() && err == nil {
			err = ctx.Err() // it is cut off, whatever has come
		}
		if err == nil {
			s.putBack(st)
			return answers, nil
		}
		st.cancel()
		if !old || ctx.Err() != nil {
			return nil, clientv3.ContextError(ctx, err)
		}
	}
}

// stream takes an open stream, or opens one.
func (s *leases) stream(ctx context.Context) (st *stream, old bool, err error) {
	s.mu.Lock()
	if last := len(s.open) - 1; last >= 0 {
		st, s.open = s.open[last], s.open[:last]
	}
	s.mu.Unlock()
	if st != nil {
		return st, true, nil
	}
	own, cancel := context.WithCancel(s.store.ctx)
	stop := context.AfterFunc(ctx, cancel)
	keep, err := s.lc.LeaseKeepAlive(opening(own))
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, false, clientv3.ContextError(ctx, err)
	}
	return &stream{keep, cancel}, false, nil
}

// putBack keeps a stream for the next batch.
func (s *leases) putBack(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) < streams && s.store.ctx.Err() == nil {
		s.open = append(s.open, st)
		return
	}
	st.cancel()
}

// hangUp ends the open streams.
func (s *leases) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, st := range s.open {
		st.cancel()
	}
	s.open = nil
}

// exchange asks for each lease, and reads the answers.
func (st *stream) exchange(ls []*lease) ([]error, error) {
	asked := backend.Now()
	answers, left := make([]error, len(ls)), map[int64]int{}
	for i, l := range ls {
		left[int64(l.id)] = i
		if err := st.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
			break // Recv has the reason
		}
	}
	for len(left) > 0 {
		resp, err := st.Recv()
		if err != nil {
			return nil, err
		}
		i, ok := left[resp.ID]
		if !ok {
			continue
		}
		delete(left, resp.ID)
		if resp.TTL <= 0 {
			ls[i].die()
			answers[i] = errLeaseOver
			continue
		}
		ls[i].renewed(asked)
	}
	return answers, nil
}
