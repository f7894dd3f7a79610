package etcd

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// streams is how many streams a batch of keep-alives is spread over at most: the
// server answers those of one stream one after the other.
const streams = 8

// perStream is how many leases are worth a stream of their own.
const perStream = 16

// errLeaseOver says that the server does not know a lease any more.
var errLeaseOver error = &backend.LostError{Reason: backend.SessionLost}

var errEarlyEnd = errors.New("the server ended a stream of keep-alives early")

// errPending stands for an answer that has not come.
var errPending = errors.New("no answer")

// keepAlive sets the expiry of leases to their TTL from now. Result i is for
// lease i: nil, ErrLost if the server does not know it, or another error, unknown.
func (s *leases) keepAlive(ctx context.Context, ls []*lease) []error {
	errs := make([]error, len(ls))
	if len(ls) == 0 {
		return errs
	}
	var wg sync.WaitGroup
	each := max((len(ls)+streams-1)/streams, perStream)
	i := 0
	for part := range slices.Chunk(ls, each) {
		out := errs[i : i+len(part)]
		i += len(part)
		send := func() {
			for i := range out {
				out[i] = errPending
			}
			_, err := do(ctx, func(ctx context.Context) (struct{}, error) {
				return struct{}{}, s.stream(ctx, part, out)
			})
			for i := range out {
				if errors.Is(out[i], errPending) && err != nil {
					out[i] = err
				}
			}
		}
		if i == len(ls) { // the last one, mostly the only one, on this goroutine
			send()
			break
		}
		wg.Go(send)
	}
	wg.Wait()
	return errs
}

// stream renews leases over one stream: one that is open already, else a new one.
// What was answered stands in out.
func (s *leases) stream(ctx context.Context, ls []*lease, out []error) error {
	if st := s.idle(); st != nil {
		err := s.over(ctx, st, ls, out)
		if err == nil {
			return nil
		}
		if !errors.Is(ctx.Err(), context.Canceled) {
			s.hangUp() // the others will have met the same fate
		}
		if ctx.Err() != nil {
			return err
		}
	}
	own, cancel := context.WithCancel(s.store.ctx)
	stop := context.AfterFunc(ctx, cancel)
	keep, err := s.lc.LeaseKeepAlive(own)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return clientv3.ContextError(ctx, err)
	}
	return s.over(ctx, &stream{keep, cancel}, ls, out)
}

// over renews leases over a stream, and keeps it for the next if all went well.
func (s *leases) over(ctx context.Context, st *stream, ls []*lease, out []error) error {
	stop := context.AfterFunc(ctx, st.cancel)
	err := st.exchange(ls, out)
	if !stop() && err == nil {
		err = ctx.Err() // it is cut off, whatever has come
	}
	if err != nil {
		st.cancel()
		return clientv3.ContextError(ctx, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.open) < streams && s.store.ctx.Err() == nil {
		s.open = append(s.open, st)
		return nil
	}
	st.cancel()
	return nil
}

// idle takes an open stream.
func (s *leases) idle() *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.open)
	if n == 0 {
		return nil
	}
	st := s.open[n-1]
	s.open = s.open[:n-1]
	return st
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

// stream is an open stream of keep-alives. It is kept because opening one asks the
// server to check the password of a user that has one, which is slow on purpose.
type stream struct {
	pb.Lease_LeaseKeepAliveClient
	cancel context.CancelFunc
}

// exchange asks for each lease that has no answer yet, and reads the answers.
func (st *stream) exchange(ls []*lease, out []error) error {
	asked := backend.Now()
	left := map[int64]int{}
	for i, l := range ls {
		if !errors.Is(out[i], errPending) {
			continue // answered by the first send
		}
		left[int64(l.id)] = i
		if err := st.Send(&pb.LeaseKeepAliveRequest{ID: int64(l.id)}); err != nil {
			break // Recv has the reason
		}
	}
	for len(left) > 0 {
		resp, err := st.Recv()
		if errors.Is(err, io.EOF) {
			return errEarlyEnd
		}
		if err != nil {
			return err
		}
		i, ok := left[resp.ID]
		if !ok {
			continue
		}
		delete(left, resp.ID)
		if resp.TTL <= 0 {
			ls[i].die()
			out[i] = errLeaseOver
			continue
		}
		ls[i].renewed(asked)
		out[i] = nil
	}
	return nil
}
