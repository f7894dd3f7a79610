package stores

import (
	"context"
	"fmt"
	"time"
)

// Bounds of the time that a server may take. Only a machine that hangs reaches them.
const (
	startTimeout = 60 * time.Second
	stopTimeout  = 10 * time.Second
	checkTimeout = time.Second
)

// await calls check until it returns nil, ctx is done or ended is closed. The pause between two looks grows from 1 ms
// to 20 ms: a server that starts in 10 ms is seen after 12.
func await(ctx context.Context, ended <-chan struct{}, check func(context.Context) error) error {
	pause := time.Millisecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, checkTimeout)
		err := check(look)
		cancel()
		if err == nil {
			return nil
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return fmt.Errorf("not ready: %w (%w)", err, context.Cause(ctx))
		case <-ended:
			return fmt.Errorf("the program ended: %w", err)
		case <-timer.C:
		}
		pause = min(2*pause, 20*time.Millisecond)
	}
}
