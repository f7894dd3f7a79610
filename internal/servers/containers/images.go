package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/log"
)

// connectEngine connects to the container engine; the error matches errMissing if none answers.
func connectEngine(ctx context.Context) (*testcontainers.DockerProvider, error) {
	provider, err := testcontainers.NewDockerProvider(
		testcontainers.WithLogger(log.NewNoopLogger()),
		// Without a name it would make a network of its own and add it to every container.
		testcontainers.WithDefaultBridgeNetwork("host"),
	)
	if err != nil {
		return nil, fmt.Errorf("container engine is %w: %w", errMissing, err)
	}
	if _, err := provider.Client().Ping(ctx, client.PingOptions{}); err != nil {
		provider.Close()
		return nil, fmt.Errorf("container engine is %w: %w", errMissing, err)
	}
	return provider, nil
}

// configure makes testcontainers quiet, and turns its reaper off where the reaper's image is not there: a test that
// starts a server must not fail because another image cannot be pulled. The containers are then removed by the tests
// alone. It must come before testcontainers reads its configuration, which it does once.
var configure = sync.OnceValue(func() error {
	log.SetDefault(log.NewNoopLogger())
	const variable = "TESTCONTAINERS_RYUK_DISABLED"
	if os.Getenv(variable) != "" {
		return nil
	}
	c, err := client.New(client.FromEnv)
	if err != nil {
		return os.Setenv(variable, "true")
	}
	defer c.Close()
	//lint:ignore SA1019 its replacement is internal to testcontainers
	if _, err := c.ImageInspect(context.Background(), testcontainers.ReaperDefaultImage); err != nil {
		return os.Setenv(variable, "true")
	}
	return nil
})

// obtain sees to it that an image is there: it pulls a missing one unless that is forbidden. The error matches
// errMissing.
func obtain(ctx context.Context, engine client.APIClient, name string) error {
	_, err := engine.ImageInspect(ctx, name)
	if err == nil {
		return nil
	}
	if !errdefs.IsNotFound(err) {
		return err
	}
	if os.Getenv("FENCELOCK_PULL") == "never" {
		return fmt.Errorf("image %s is %w, and FENCELOCK_PULL=never", name, errMissing)
	}
	pull, err := engine.ImagePull(ctx, name, client.ImagePullOptions{})
	if err == nil {
		err = pull.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("image %s is %w: pull: %w", name, errMissing, err)
	}
	return nil
}
