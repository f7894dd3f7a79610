package backends

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/internal/servers"
)

func TestMain(m *testing.M) {
	logging.Disable() // go-redis reports every dial that a fault makes fail
	conformance.Child(pgBusy{})
	// A rule waits for most of its time, so more of them fit at once than there are cores; with too
	// many, leases run out because nobody gets to renew them. How many run at once is each backend's
	// (run): a rule that waits for its turn counts here too.
	flag.Parse()
	if err := flag.Set("test.parallel", "1000"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// rewinds is servers of this machine, whose data can be put back from a copy.
type rewinds struct {
	conformance.Server
	dirs []string
}

func (s rewinds) Keep() error {
	var errs []error
	for _, dir := range s.dirs {
		errs = append(errs, exec.Command("cp", "-a", dir, dir+"-kept").Run())
	}
	return errors.Join(errs...)
}

func (s rewinds) SetBack() error {
	var errs []error
	for _, dir := range s.dirs {
		errs = append(errs, os.RemoveAll(dir), os.Rename(dir+"-kept", dir))
	}
	return errors.Join(errs...)
}

// rewinding makes one of servers of this machine; in a container the data is out of reach.
func rewinding(t *testing.T, as conformance.Server, all ...*servers.Server) conformance.Server {
	t.Helper()
	var dirs []string
	for _, s := range all {
		if s.Kind() != "local" {
			return as
		}
		dirs = append(dirs, s.Dir())
		t.Cleanup(func() { _ = os.RemoveAll(s.Dir() + "-kept") })
	}
	return rewinds{as, dirs}
}

// skipShort leaves a second topology of a store, or what runs in virtual time too, to the whole run.
func skipShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: one topology of each store, and virtual time where it can be had")
	}
}
