package etcd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/backend"
)

const (
	// sends is how often a request is sent at most, so that it comes to a member that answers: which one it
	// goes to depends on what else is sent meanwhile, and a silent one is asked for its turn for many seconds yet.
	sends = 4
	// sendMost bounds one send of them, and sendLeast is what is worth another.
	sendMost  = 2 * time.Second
	sendLeast = 250 * time.Millisecond
	// sendsMost bounds all of them.
	sendsMost = 5 * time.Second
	// sendPause comes before the third, twice that before the fourth, if the one before has not taken as long.
	sendPause = 250 * time.Millisecond
	// reconnectMost is how long a request waits for a new connection before it is
	// sent again.
	reconnectMost = time.Second
)

// do sends a request, and again if no answer came, while there is time: send must have the same
// effect sent twice as once.
func (d *Driver) do(ctx context.Context, send func(context.Context) error) error {
	end := time.Now().Add(sendsMost)
	if e, ok := ctx.Deadline(); ok && e.Before(end) {
		end = e
	}
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		began := time.Now()
		err := once(ctx, min(sendMost, max(end.Sub(began)/2, 50*time.Millisecond)), send)
		if err == nil || ctx.Err() != nil || n+1 == sends || !unanswered(err) {
			return meaning(ctx, err)
		}
		if n > 0 {
			pause := max(sendPause*time.Duration(n)-time.Since(began), 0)
			if time.Until(end)-pause < 2*sendLeast || rest(ctx, pause) != nil {
				return meaning(ctx, err)
			}
		}
		if !d.reconnected(ctx) {
			return meaning(ctx, err)
		}
	}
}

// once sends a request for a while.
func once(ctx context.Context, most time.Duration, send func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	err := send(limited)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("no answer within %v", most.Round(time.Millisecond))
	}
	return err
}

// rest returns after a pause, or with ctx's error.
func rest(ctx context.Context, pause time.Duration) error {
	if pause <= 0 {
		return nil
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

// commit sends a transaction of which being sent twice does no harm.
func (d *Driver) commit(ctx context.Context, ifs []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	var resp *clientv3.TxnResponse
	err := d.do(ctx, func(ctx context.Context) (err error) {
		resp, err = d.client.Txn(ctx).If(ifs...).Then(then...).Else(els...).Commit()
		return err
	})
	return resp, err
}

// unanswered reports whether err leaves open what became of a request, and
// another member or another moment may answer it.
func unanswered(err error) bool {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code() == codes.Unavailable
	}
	switch s, ok := status.FromError(err); {
	case !ok:
		return true // our own limit, or a connection's error
	default:
		return s.Code() == codes.Unavailable || s.Code() == codes.DeadlineExceeded || s.Code() == codes.Internal || s.Code() == codes.Unknown
	}
}

// reconnected waits a little until there is a connection.
func (d *Driver) reconnected(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, reconnectMost)
	defer cancel()
	conn := d.client.ActiveConnection()
	if conn == nil {
		return true
	}
	for {
		state := conn.GetState()
		switch state {
		case connectivity.Ready:
			return true
		case connectivity.Idle:
			conn.Connect()
		case connectivity.Shutdown:
			return false
		default: // it connects, or pauses between two tries
		}
		if !conn.WaitForStateChange(limited, state) {
			return false
		}
	}
}

// meaning returns an error as the contract has it: ctx's own if it has ended, and
// ErrInvalid for what another try cannot mend.
func meaning(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	for _, m := range []struct {
		err   error
		means string
	}{
		{rpctypes.ErrPermissionDenied, "the etcd user lacks rights: it needs to read and write the keys that begin with the prefix"},
		{rpctypes.ErrUserEmpty, "the server wants a user and a password"},
		{rpctypes.ErrAuthFailed, "the server refuses the user or password"},
		{rpctypes.ErrAuthNotEnabled, "the server has no authentication switched on: leave user and password out"},
		{rpctypes.ErrTooManyOps, "the server allows fewer operations in a transaction than are needed: start it with --max-txn-ops=128, which is its default, or more"},
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
