package gocron_test

import (
	"context"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/memory" // for memory://
	fencegocron "github.com/fencelock/fencelock/integrations/gocron"
)

func ExampleLocker() {
	locks, err := fencelock.Open(context.Background(), "memory://")
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	report := func(ctx context.Context, lease *fencelock.Lease) error { return ctx.Err() }

	locker := fencegocron.NewLocker(locks, "jobs/", fencelock.WithMinHold(10*time.Second))
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		log.Fatal(err)
	}
	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(locker.Task("report", report)),
		gocron.WithName("report"))
	if err != nil {
		log.Fatal(err)
	}
	scheduler.Start()
	_ = scheduler.Shutdown()
	// Output:
}
