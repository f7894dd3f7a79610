package bench

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/fencelock/fencelock/bench"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	programs "github.com/fencelock/fencelock/internal/servers/stores"
)

// server is a store that was started.
type server interface {
	URL() string
	Close() error
}

// localTargets starts every store whose program this machine has, and warns of missing programs. end
// stops them.
func localTargets(
	ctx context.Context, a *cli.App,
) (targets []bench.Target, end func() error, err error) {
	dir, err := os.MkdirTemp(a.TempDir(), "fencelock-bench-")
	if err != nil {
		return nil, nil, err
	}
	ends := []func() error{func() error { return os.RemoveAll(dir) }}
	end = func() error {
		var errs []error
		for _, e := range ends {
			errs = append(errs, e())
		}
		return errors.Join(errs...)
	}
	targets = []bench.Target{
		{URL: "memory://"},
		{URL: (&url.URL{Scheme: "file", Path: filepath.ToSlash(dir)}).String()},
	}
	var on programs.Local
	for _, s := range []struct {
		store string
		start func() (server, error)
	}{
		{"redis", func() (server, error) {
			return programs.StartRedis(ctx, on, programs.RedisOptions{})
		}},
		{"etcd", func() (server, error) {
			return programs.StartEtcd(ctx, on, programs.EtcdOptions{})
		}},
		{"zookeeper", func() (server, error) {
			long := programs.ZooKeeperOptions{Config: []string{"maxSessionTimeout=120000"}}
			return programs.StartZooKeeper(ctx, on, long)
		}},
		{"postgres", func() (server, error) {
			return programs.StartPostgres(ctx, on, programs.PostgresOptions{})
		}},
	} {
		if !a.JSON {
			fmt.Fprintf(a.Err, "starting %s\n", s.store)
		}
		started, err := s.start()
		switch {
		case errors.Is(err, programs.ErrMissing):
			a.Warn("left out: %v", err)
			continue
		case err != nil:
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", s.store, err), end())
		}
		ends = append(ends, started.Close)
		targets = append(targets, bench.Target{URL: started.URL()})
		if s.store == "postgres" { // it has a query
			targets = append(targets, bench.Target{URL: started.URL() + "&mode=lease"})
		}
	}
	return targets, end, nil
}
