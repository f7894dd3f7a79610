package logs_test

import (
	"context"
	"log"
	"log/slog"
	"os"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	"github.com/fencelock/fencelock/metrics/logs"
)

func Example() {
	// Your program's logger; this one leaves out the error, which says no more than the reason, and
	// what changes from run to run.
	logger := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			switch a.Key {
			case slog.TimeKey, "token", "took", "margin", "err":
				return slog.Attr{}
			}
			return a
		},
	}))
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, "memory://", fencelock.WithOwner("worker-1"),
		fencelock.WithObserver(logs.New(logger)))
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	lease, err := locks.Mutex("jobs/nightly", fencelock.WithMaxHold(50*time.Millisecond)).Lock(ctx)
	if err != nil {
		log.Fatal(err)
	}
	<-lease.Done()
	// Output:
	// level=WARN msg="lock lost" backend=memory name=jobs/nightly owner=worker-1 reason="maximum hold reached"
}
