package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"

	"github.com/fencelock/fencelock/bench"
	programs "github.com/fencelock/fencelock/internal/servers/stores"
)

// localTargets starts every store that this machine has, and returns what stops them. What is missing is said.
func (a *app) localTargets(ctx context.Context) (targets []bench.Target, end func() error, err error) {
	dir, err := os.MkdirTemp(a.tempDir(), "fencelock-bench-")
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
	for _, s := range []struct {
		store string
		start func() (string, func() error, error)
	}{
		{"redis", func() (string, func() error, error) {
			s, err := programs.StartRedis(ctx, programs.Local{}, programs.RedisOptions{})
			if err != nil {
				return "", nil, err
			}
			return s.URL(), s.Close, nil
		}},
		{"etcd", func() (string, func() error, error) {
			s, err := programs.StartEtcd(ctx, programs.Local{}, programs.EtcdOptions{})
			if err != nil {
				return "", nil, err
			}
			return s.URL(), s.Close, nil
		}},
		{"zookeeper", func() (string, func() error, error) {
			s, err := programs.StartZooKeeper(ctx, programs.Local{}, programs.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
			if err != nil {
				return "", nil, err
			}
			return s.URL(), s.Close, nil
		}},
		{"postgres", func() (string, func() error, error) {
			s, err := programs.StartPostgres(ctx, programs.Local{}, programs.PostgresOptions{})
			if err != nil {
				return "", nil, err
			}
			return s.URL(), s.Close, nil
		}},
	} {
		fmt.Fprintf(a.err, "starting %s\n", s.store)
		raw, stop, err := s.start()
		switch {
		case errors.Is(err, programs.ErrMissing):
			fmt.Fprintf(a.err, "left out: %v\n", err)
			continue
		case err != nil:
			return nil, nil, errors.Join(fmt.Errorf("%s: %w", s.store, err), end())
		}
		ends = append(ends, stop)
		targets = append(targets, bench.Target{URL: raw})
		if u, err := url.Parse(raw); err == nil && s.store == "postgres" {
			q := u.Query()
			q.Set("mode", "lease")
			u.RawQuery = q.Encode()
			targets = append(targets, bench.Target{URL: u.String()})
		}
	}
	return targets, end, nil
}
