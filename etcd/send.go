package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"github.com/fencelock/fencelock/backend"
)

const (
	// firstMost is the time after which a request without an answer is sent once more, to another member. Where less
	// than twice of it is left, that is done after half of the rest.
	firstMost = 700 * time.Millisecond
	// slowly is how many batches go part by part after one in which a lock was not free, or a hold
	// was gone.
	slowly = 16
	// lastMost bounds both sends for a caller whose ctx has no deadline: the client may not ping its servers.
	lastMost = 5 * time.Second
)

var errSilent = fmt.Errorf("no answer within %v", lastMost)

// do sends a request that is about no claim, and once more beside that if no answer comes soon. The first may have gone
// to a member that hangs; on a slow way its answer comes yet. Sent twice it must have the effect of once.
func do[T any](ctx context.Context, send func(context.Context) (T, error)) (T, error) {
	most, own := firstMost, ctx
	if end, bounded := ctx.Deadline(); bounded {
		most = min(most, time.Until(end)/2)
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, lastMost, errSilent)
		defer cancel()
	}
	limited, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		res T
		err error
	}
	second := make(chan outcome, 1)
	timer := time.AfterFunc(most, func() {
		res, err := send(limited)
		second <- outcome{res, err}
		if known(err) {
			cancel()
		}
	})
	res, err := send(limited)
	switch under := !timer.Stop(); {
	case known(err):
		if cancel(); under {
			<-second
		}
	case under:
		o := <-second
		res, err = o.res, o.err
	case limited.Err() == nil:
		res, err = send(limited)
	}
	if err != nil && context.Cause(ctx) == errSilent {
		err = errSilent
	}
	return res, meaning(own, err)
}

// known reports whether err, or its being nil, is the server's word.
func known(err error) bool { return err == nil || answered(err) }

// txn sends a transaction once.
func (s *store) txn(
	ctx context.Context, ifs []*pb.Compare, then, els []*pb.RequestOp,
) (*pb.TxnResponse, error) {
	resp, err := s.transact(ctx, &pb.TxnRequest{Compare: ifs, Success: then, Failure: els})
	return resp, meaning(ctx, err)
}

// commit is do of a transaction.
func (s *store) commit(
	ctx context.Context, ifs []*pb.Compare, then, els []*pb.RequestOp,
) (*pb.TxnResponse, error) {
	return do(ctx, func(ctx context.Context) (*pb.TxnResponse, error) {
		return s.transact(ctx, &pb.TxnRequest{Compare: ifs, Success: then, Failure: els})
	})
}

// get is do of a read.
func (s *store) get(
	ctx context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	return do(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, key, opts...)
	})
}

// part is a transaction about one queue that may share a request with those about others.
type part struct {
	c     *backend.Claim
	ifs   []*pb.Compare
	then  []*pb.RequestOp
	els   func(anchors bool) []*pb.RequestOp // nil: none; anchors: it may compare the base with the clock
	gated bool                               // the gates must be those of the claim; the last answer is the base then
	due   rise                               // what its grant asks of the base
	rev   int64                              // its create revision, or one below it
	freed string                             // the nonce that goes to the key ~last with it
	take  func(context.Context, *pb.TxnResponse, error) error
}

// otherwise are its operations where its compares fail.
func (p *part) otherwise(anchors bool) []*pb.RequestOp {
	if p.els == nil {
		return nil
	}
	return p.els(anchors)
}

// send sends a part alone; nil: there is nothing to do.
func (s *store) send(ctx context.Context, one *part) error {
	if one == nil {
		return nil
	}
	ifs, then := s.flat(one)
	resp, err := s.txn(ctx, ifs, then, one.otherwise(true))
	return one.take(ctx, resp, err)
}

// together sends parts in one transaction. Where the server refuses one of them each goes alone.
func (s *store) together(ctx context.Context, parts []*part) {
	switch len(parts) {
	case 0:
		return
	case 1:
		parts[0].c.Err = word(s.send(ctx, parts[0]))
		return
	}
	resps, err := s.commitParts(ctx, parts)
	var wg sync.WaitGroup
	for i, p := range parts {
		if err != nil && answered(err) {
			wg.Go(func() { s.alone(ctx, p.c) })
			continue
		}
		if err == nil && p.c.Leaving && !resps[i].Succeeded { // it takes more requests to tell how its entry went
			wg.Go(func() { p.c.Err = word(p.take(ctx, resps[i], nil)) })
			continue
		}
		p.c.Err = word(p.take(ctx, resps[i], err))
	}
	wg.Wait()
}

// commitParts returns what became of each part. Mostly each can be done, which is least work for
// the server if it is asked for all or nothing; otherwise it is asked again, part by part.
func (s *store) commitParts(ctx context.Context, parts []*part) ([]*pb.TxnResponse, error) {
	resps := make([]*pb.TxnResponse, len(parts))
	if s.slow.Load() <= 0 {
		ifs, then := s.flat(parts...)
		resp, err := s.txn(ctx, ifs, then, nil)
		if err != nil || resp.Succeeded {
			for i := range resps {
				resps[i] = resp
			}
			return resps, err
		}
		s.slow.Store(slowly)
	}
	s.slow.Add(-1)
	ops := s.rises(parts)
	first := len(ops)
	for _, p := range parts {
		own := *p
		own.due, own.freed = rise{}, ""
		ifs, then := s.flat(&own)
		ops = append(ops, opTxn(ifs, then, p.otherwise(false)))
	}
	resp, err := s.txn(ctx, nil, append(ops, s.freed(parts)...), nil)
	if err != nil {
		return resps, err
	}
	for i := range resps {
		resps[i] = resp.Responses[first+i].GetResponseTxn()
		resps[i].Header = resp.Header
	}
	return resps, nil
}

// flat returns a transaction that does all parts or nothing. Its last answer is the base if a part
// wants that.
func (s *store) flat(parts ...*part) (ifs []*pb.Compare, then []*pb.RequestOp) {
	then = s.rises(parts)
	var by *backend.Claim // whose gates are compared
	for _, p := range parts {
		ifs, then = append(ifs, p.ifs...), append(then, p.then...)
		if p.gated && (by == nil || version(by.Gates) != version(p.c.Gates)) {
			by = p.c
			ifs = append(ifs, s.sameGates(by.Gates))
		}
	}
	then = append(then, s.freed(parts)...)
	if by != nil {
		then = append(then, s.getBase)
	}
	return ifs, then
}

// rises is the operation that raises the base, for the first part that asks for it: parts that share
// a transaction ask for no more than the clock.
func (s *store) rises(parts []*part) []*pb.RequestOp {
	for _, p := range parts {
		if p.due.least > 0 {
			return []*pb.RequestOp{s.raiseBase(p.due, p.rev)}
		}
	}
	return nil
}

// freed is the operation that leaves the nonces of releases at the key ~last; none if there is no
// release.
func (s *store) freed(parts []*part) []*pb.RequestOp {
	var nonces []string
	for _, p := range parts {
		if p.freed != "" {
			nonces = append(nonces, p.freed)
		}
	}
	if nonces == nil {
		return nil
	}
	return []*pb.RequestOp{opPut(s.keys.last(), strings.Join(nonces, " "), 0)}
}

// answered reports whether err is the server's word on a request: no copy of that send is under way
// any more. With all of them but ErrNoSpace nothing was done: the request that finds the quota used
// up is done, and answered with that.
func answered(err error) bool {
	known, ok := errors.AsType[rpctypes.EtcdError](err)
	return ok && known.Code() != codes.Unavailable
}

// word returns the error of a claim's call as the engine has to know it.
func word(err error) error {
	if err != nil && answered(err) && !backend.Final(err) {
		return backend.Refusal(err)
	}
	return err
}

// meaning returns an error as the contract has it: ctx's own if it has ended, and
// ErrInvalid for an error that another try cannot mend.
func meaning(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("etcd is full: compact it, defragment it and disarm its alarm NOSPACE, "+
			"or give it a greater quota: %w", err)
	}
	for _, m := range []struct {
		err   error
		means string
	}{
		{
			rpctypes.ErrPermissionDenied,
			"the etcd user lacks rights: it needs to read and write the keys " +
				"that begin with the prefix",
		},
		{rpctypes.ErrUserEmpty, "the server wants a user and a password"},
		{rpctypes.ErrAuthFailed, "the server refuses the user or password"},
		{
			rpctypes.ErrAuthNotEnabled,
			"the server has no authentication switched on: leave user and password out",
		},
		{
			rpctypes.ErrTooManyOps,
			"the server allows fewer operations in a transaction than are needed: start it with " +
				"--max-txn-ops=128, which is its default, or more",
		},
	} {
		if errors.Is(err, m.err) {
			return &refused{m.means, err}
		}
	}
	return err
}

// refused is a server's error that matches ErrInvalid.
type refused struct {
	means string
	err   error
}

func (e *refused) Error() string {
	return fmt.Sprintf("%v: %s (%v)", backend.ErrInvalid, e.means, e.err)
}
func (e *refused) Unwrap() []error { return []error{backend.ErrInvalid, e.err} }
