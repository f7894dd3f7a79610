// Package held runs the jobs of other libraries under a lease, as fencelock.Locker.Do does with its functions.
package held

import (
	"cmp"
	"context"
	"errors"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// errPanicked is why what a job wrote was rolled back.
var errPanicked = errors.New("the job panicked")

// Run calls job with a ctx that ends with ctx and with the lease. What job wrote through the lease's own transaction is
// rolled back if job failed, panicked or outlived its ctx. The lease stays the caller's.
func Run(ctx context.Context, lease *fencelock.Lease, job func(context.Context) error) (err error) {
	held, cancel := lease.Context(ctx)
	cause := errPanicked
	defer func() {
		cancel()
		if cause != nil { // a lease whose handle was asked for is not passed on inside the process
			if x, ok := lease.Handle().(backend.Undoer); ok {
				x.Undo(cause)
			}
		}
	}()
	err = job(held)
	cause = cmp.Or(err, context.Cause(held))
	return err
}
