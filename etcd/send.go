package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/backend"
)

const (
	// firstMost bounds the first send of what is sent twice: the second goes to another member.
	firstMost = 700 * time.Millisecond
	// sendMost bounds every other one.
	sendMost = 2 * time.Second
	// sendPause is what lies between the two at least, so that a client connects again meanwhile.
	sendPause = 100 * time.Millisecond
	// slowly is how many batches go part by part after one in which a lock was not free, or a hold
	// was gone.
	slowly = 16
)

// do sends a request that is about no claim, and again if no answer came: send must have the same
// effect sent twice as once.
func do[T any](ctx context.Context, send func(context.Context) (T, error)) (T, error) {
	most := firstMost
	if end, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(end)/2)
	}
	began := time.Now()
	res, err := once(ctx, most, send)
	if unanswered(err) && rest(ctx, sendPause-time.Since(began)) == nil {
		res, err = once(ctx, sendMost, send)
	}
	return res, meaning(ctx, err)
}

// once sends a request for a while.
func once[T any](ctx context.Context, most time.Duration, send func(context.Context) (T, error)) (T, error) {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	res, err := send(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = fmt.Errorf("no answer within %v", most.Round(time.Millisecond))
	}
	return res, err
}

// txn sends a transaction once.
func (s *store) txn(ctx context.Context, ifs []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	resp, err := s.client.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
	return resp, meaning(ctx, err)
}

// commit is do of a transaction.
func (s *store) commit(
	ctx context.Context, ifs []clientv3.Cmp, then, els []clientv3.Op,
) (*clientv3.TxnResponse, error) {
	return do(ctx, func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
	})
}

// get is do of a read.
func (s *store) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return do(ctx, func(ctx context.Context) (*clientv3.GetResponse, error) {
		return s.client.Get(ctx, key, opts...)
	})
}

// part is a transaction about one queue that may share a request with those about others.
type part struct {
	c         *backend.Claim
	ifs       []clientv3.Cmp
	then, els []clientv3.Op
	gated     bool   // the gates must be those of the claim
	anchor    bool   // the base is to be compared with the clock first
	base      bool   // the last answer is to be the base
	freed     string // the nonce that goes to the key ~last with it
	unsure    func() // called when it may have been done, and nobody knows
	take      func(context.Context, *clientv3.TxnResponse, error) error
}

// together sends parts in one transaction. Mostly each can be done, which is least work for the
// server if it is asked for all or nothing; otherwise it is asked again, part by part. Where the
// server refuses one of them each goes alone.
func (s *store) together(ctx context.Context, parts []*part) {
	if len(parts) == 0 {
		return
	}
	resps, err := s.commitParts(ctx, parts)
	var wg sync.WaitGroup
	for i, p := range parts {
		switch {
		case err == nil:
			p.c.Err = word(p.take(ctx, resps[i], nil))
		case answered(err):
			wg.Go(func() { s.alone(ctx, p.c) })
		default:
			p.c.Err = p.take(ctx, nil, err)
		}
	}
	wg.Wait()
}

// commitParts returns what became of each part.
func (s *store) commitParts(ctx context.Context, parts []*part) ([]*clientv3.TxnResponse, error) {
	resps := make([]*clientv3.TxnResponse, len(parts))
	if len(parts) == 1 || s.slow.Add(-1) < 0 {
		s.slow.Store(max(s.slow.Load(), 0))
		ifs, then := s.flat(parts...)
		var els []clientv3.Op
		if len(parts) == 1 {
			els = parts[0].els
		}
		resp, err := s.try(ctx, ifs, then, els, parts)
		if err != nil || resp.Succeeded || len(parts) == 1 {
			for i := range resps {
				resps[i] = resp
			}
			return resps, err
		}
		s.slow.Store(slowly)
	}
	var ops []clientv3.Op
	if slices.ContainsFunc(parts, func(p *part) bool { return p.anchor }) {
		ops = append(ops, s.anchor())
	}
	first := len(ops)
	for _, p := range parts {
		own := *p
		own.anchor, own.freed = false, ""
		ifs, then := s.flat(&own)
		ops = append(ops, clientv3.OpTxn(ifs, then, p.els))
	}
	ops = append(ops, s.freed(parts)...)
	resp, err := s.try(ctx, nil, ops, nil, parts)
	if err != nil {
		return nil, err
	}
	for i := range resps {
		resps[i] = (*clientv3.TxnResponse)(resp.Responses[first+i].GetResponseTxn())
		resps[i].Header = resp.Header
	}
	return resps, nil
}

// flat returns a transaction that does what all parts are to do, if it can do all of it. Its last
// answer is the base if a part wants that.
func (s *store) flat(parts ...*part) (ifs []clientv3.Cmp, then []clientv3.Op) {
	if slices.ContainsFunc(parts, func(p *part) bool { return p.anchor }) {
		then = append(then, s.anchor())
	}
	var by *backend.Claim // whose gates are compared
	base := false
	for _, p := range parts {
		ifs, then = append(ifs, p.ifs...), append(then, p.then...)
		if p.gated && (by == nil || version(by.Gates) != version(p.c.Gates)) {
			by = p.c
			ifs = append(ifs, s.sameGates(by.Gates))
		}
		base = base || p.base
	}
	then = append(then, s.freed(parts)...)
	if base {
		then = append(then, clientv3.OpGet(s.keys.base()))
	}
	return ifs, then
}

// freed is the operation that leaves the nonces of releases at the key ~last; none if there is no release.
func (s *store) freed(parts []*part) []clientv3.Op {
	var nonces []string
	for _, p := range parts {
		if p.freed != "" {
			nonces = append(nonces, p.freed)
		}
	}
	if nonces == nil {
		return nil
	}
	return []clientv3.Op{clientv3.OpPut(s.keys.last(), strings.Join(nonces, " "))}
}

// try sends the transaction of parts.
func (s *store) try(
	ctx context.Context, ifs []clientv3.Cmp, then, els []clientv3.Op, parts []*part,
) (*clientv3.TxnResponse, error) {
	resp, err := s.txn(ctx, ifs, then, els)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) { // with that one nothing was done
		for _, p := range parts {
			if p.unsure != nil {
				p.unsure()
			}
		}
	}
	return resp, err
}

// single sends one part.
func (s *store) single(ctx context.Context, p *part) error {
	resps, err := s.commitParts(ctx, []*part{p})
	return p.take(ctx, resps[0], err)
}

// rest returns after a pause, or with ctx's error.
func rest(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answered reports whether err is the server's word on a request: no copy of that send is under way
// any more. With all of them but ErrNoSpace nothing was done: the request that finds the quota used
// up is done, and answered with that.
func answered(err error) bool {
	known, ok := errors.AsType[rpctypes.EtcdError](err)
	return ok && known.Code() != codes.Unavailable
}

// unanswered reports whether err leaves open what became of a request, and
// another member or another moment may answer it.
func unanswered(err error) bool {
	if err == nil {
		return false
	}
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		return known.Code() == codes.Unavailable
	}
	switch s, ok := status.FromError(err); {
	case !ok:
		return true // our own limit, or a connection's error
	default:
		return s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded ||
			s.Code() == codes.Internal || s.Code() == codes.Unknown
	}
}

// word returns the error of a claim's call as the engine has to know it.
func word(err error) error {
	if err != nil && answered(err) && !backend.Final(err) {
		return backend.Refusal(err)
	}
	return err
}

// meaning returns an error as the contract has it: ctx's own if it has ended, and
// ErrInvalid for what another try cannot mend.
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
		{rpctypes.ErrAuthNotEnabled, "the server has no authentication switched on: leave user and password out"},
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
