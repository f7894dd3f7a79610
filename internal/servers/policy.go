package servers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// The environment variables that choose where servers run and which must be there.
const (
	envServers = "FENCELOCK_SERVERS"
	envRequire = "FENCELOCK_REQUIRE"
)

// startTimeout bounds the start of one store, with the pulling of its image or the building of its program.
const startTimeout = 8 * time.Minute

// closer is a Server or several that belong together.
type closer interface {
	Close() error
	String() string
}

// start starts a store with the first launcher that has it, closes it after the test, and skips or fails the test when
// no launcher has it.
func start[S closer, O any](
	tb testing.TB, store string, f func(context.Context, stores.Launcher, O) (S, error), o O,
) S {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	s, err := tryLaunchers(ctx, f, o)
	if err != nil {
		refuse(tb, store, err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Errorf("servers: close %s: %v", store, err)
		}
	})
	tb.Logf("servers: %v", s)
	return s
}

// tryLaunchers starts a store with the first launcher that has its program or image.
func tryLaunchers[S closer, O any](
	ctx context.Context, f func(context.Context, stores.Launcher, O) (S, error), o O,
) (S, error) {
	var none S
	list, err := launchers(os.Getenv(envServers))
	if err != nil {
		return none, err
	}
	var missing []error
	for _, l := range list {
		s, err := f(ctx, l, o)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, stores.ErrMissing) {
			return none, err
		}
		missing = append(missing, err)
	}
	return none, errors.Join(missing...)
}

// launchers lists what FENCELOCK_SERVERS allows, in the order in which they are tried.
func launchers(choice string) ([]stores.Launcher, error) {
	switch choice {
	case "", "auto":
		return []stores.Launcher{stores.Local{}, Container{}}, nil
	case "local":
		return []stores.Launcher{stores.Local{}}, nil
	case "container":
		return []stores.Launcher{Container{}}, nil
	}
	return nil, fmt.Errorf("%s=%q: allowed are auto, local and container", envServers, choice)
}

// refuse skips a test whose store is missing, and fails it if the store is required or could not be started.
func refuse(tb testing.TB, store string, err error) {
	tb.Helper()
	switch {
	case !errors.Is(err, stores.ErrMissing):
		tb.Fatalf("servers: %s: %v", store, err)
	case required(os.Getenv(envRequire), store):
		tb.Fatalf("servers: %s is required by %s but missing; %s: %v", store, envRequire, remedy(store), err)
	default:
		tb.Skipf("servers: %s is missing; %s: %v", store, remedy(store), err)
	}
}

// required reports whether a comma-separated list has the store or "all".
func required(list, store string) bool {
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(names, store) || slices.Contains(names, "all")
}

// Program returns the path of a program that a test runs beside the stores: the first of names that is there. Without
// it the test is skipped, or fails if FENCELOCK_REQUIRE lists what setup-tests.sh installs for it.
func Program(tb testing.TB, setup string, names ...string) string {
	tb.Helper()
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	how := fmt.Sprintf("missing; run scripts/setup-tests.sh %s", setup)
	if required(os.Getenv(envRequire), setup) {
		tb.Fatalf("%s is required by %s but %s", names[0], envRequire, how)
	}
	tb.Skipf("%s is %s", names[0], how)
	return ""
}

// remedy says how to get a store.
func remedy(store string) string {
	return fmt.Sprintf("run scripts/setup-tests.sh %s, or start a Docker engine and set %s to an image that is there",
		store, envImage(store))
}

func envImage(store string) string { return "FENCELOCK_IMAGE_" + strings.ToUpper(store) }
