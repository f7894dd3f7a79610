package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/config"
	"github.com/fencelock/fencelock/fence"
)

//go:embed right.yaml wrong.yaml
var configs embed.FS

// work is a process of the fleet: it increments the counter until it is told to stop. It knows nothing of
// migrations: that is its configuration's business.
func work(ctx context.Context) error {
	file, err := configs.Open(os.Getenv("CONFIG"))
	if err != nil {
		return err
	}
	c, err := config.Load(file)
	if err != nil {
		return err
	}
	locks, err := c.Open(ctx, fencelock.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	defer locks.Close()
	fmt.Println("ready")
	name := strings.TrimSuffix(c.Rules()[0].Match, "*") + "counter"
	for ctx.Err() == nil {
		// What was begun is finished: a request that is broken off may be carried out once the lock is another's.
		err := locks.Do(context.WithoutCancel(ctx), name, increment)
		switch {
		case err == nil, ctx.Err() != nil:
		case errors.Is(err, fencelock.ErrUnsupported): // a gate: this process is of a phase that is over
			return err
		case errors.Is(err, fencelock.ErrStale), errors.Is(err, fencelock.ErrLost),
			errors.Is(err, fencelock.ErrUnavailable):
			time.Sleep(10 * time.Millisecond) // and again
		default:
			return err
		}
	}
	return nil
}

// increment reads the counter, thinks, and writes. It is only right while nobody else does.
func increment(ctx context.Context, lease *fencelock.Lease) error {
	n, err := access(ctx, lease, http.MethodGet, "")
	if err != nil {
		return err
	}
	time.Sleep(time.Millisecond)
	_, err = access(ctx, lease, http.MethodPut, strconv.Itoa(n+1))
	return err
}

// access sends one request with the lease's token, and returns the counter.
func access(ctx context.Context, lease *fencelock.Lease, method, body string) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, os.Getenv(workerKey), strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	fence.Set(req, lease.Token())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if err := fence.Response(resp); err != nil {
		return 0, err
	}
	return strconv.Atoi(string(text))
}
