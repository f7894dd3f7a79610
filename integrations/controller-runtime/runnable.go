// Package controllerruntime lets a manager of sigs.k8s.io/controller-runtime stand for an election that
// is held in any store: for work outside of Kubernetes' own, one leader for several clusters, or
// fencing tokens, which a Lease of Kubernetes has not.
package controllerruntime

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/leader"
)

// A Runnable is a manager.Runnable that leads whenever it holds Mutex: manager.Add. It needs no leader
// election of the manager, and stands again after each term, where the manager's own ends the process.
// A controller that the leader alone runs is made by Callbacks.Lead, for each term anew
// (controller.NewUnmanaged).
type Runnable struct {
	Mutex     fencelock.Mutex
	Callbacks leader.Callbacks
}

// Start is leader.Run. It returns nil after the end of ctx, when Lead has returned and the lock is
// released; or before that an error that trying again cannot mend, which ends the manager. Without
// Callbacks.Failed, other errors go to the logger of ctx, such as those of a store that is out.
func (r Runnable) Start(ctx context.Context) error {
	if r.Callbacks.Failed == nil {
		r.Callbacks.Failed = func(err error) {
			log.FromContext(ctx).Error(err, "leader election", "lock", r.Mutex.Name())
		}
	}
	err := leader.Run(ctx, r.Mutex, r.Callbacks)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: it is this that elects.
func (Runnable) NeedLeaderElection() bool { return false }
