//go:build linux

package guarantees_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/faultproxy"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/servers/stores"
)

// lab starts servers on this machine whose wall clocks can be moved, whose disks can be filled and
// lose their power, and that can be cut off from each other: each of these where this process may
// arrange it.
type lab struct {
	stores.Local
	dir   string
	shim  string // moves clocks; empty: no compiler
	size  int64  // of the disk that each server gets; 0: none
	apart bool   // each server gets a network of its own
	hosts []*host
	wires []*wire
}

// host is what one server runs on.
type host struct {
	clock string // the file that moves it
	disk  *disk
	net   *network
	ports []int
}

// wire is the way from one host to a port of another; nil is this process's own network.
type wire struct {
	from, to *host
	proxy    *faultproxy.Proxy
}

func newLab(t *testing.T) *lab {
	t.Helper()
	dir, err := os.MkdirTemp("", "fencelock-lab-") // t.TempDir is ours alone, and Postgres is run by another account
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{dir: dir}
	t.Cleanup(func() { // when the servers are closed
		for _, w := range l.wires {
			if err := w.proxy.Close(); err != nil {
				t.Error(err)
			}
		}
		for _, h := range l.hosts {
			h.net.close()
		}
		os.RemoveAll(dir)
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if isolated() {
		if err := os.Mkdir(l.images(), 0o700); err != nil {
			t.Fatal(err)
		}
		// in memory: quick, and gone with this process
		if err := unix.Mount("none", l.images(), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(l.images(), 0); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := exec.LookPath("cc"); err != nil {
		return l
	}
	l.shim = filepath.Join(l.dir, "clock.so")
	if out, err := exec.CommandContext(t.Context(), "cc", "-O2", "-shared", "-fPIC", "-o", l.shim,
		"../../redlock/testdata/clock.c").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return l
}

func (l *lab) images() string { return filepath.Join(l.dir, "images") }

// Prepare is that of Local, on a host of the server's own.
func (l *lab) Prepare(ctx context.Context, s stores.Spec) (stores.Process, error) {
	h := &host{ports: s.Ports}
	if l.shim != "" {
		h.clock = filepath.Join(l.dir, fmt.Sprintf("clock-%d", len(l.hosts)))
		if err := os.WriteFile(h.clock, make([]byte, 8), 0o644); err != nil {
			return nil, err
		}
		s.Env = append(s.Env, "LD_PRELOAD="+l.shim, "CLOCK_FILE="+h.clock)
	}
	if l.apart && isolated() {
		var err error
		if h.net, err = newNetwork(); err != nil {
			return nil, err
		}
		s.Args = append([]string{"nsenter", "--net=" + h.net.path()}, s.Args...)
	}
	l.hosts = append(l.hosts, h)
	if err := l.wire(h); err != nil {
		return nil, err
	}
	p, err := l.Local.Prepare(ctx, s)
	if err != nil || l.size == 0 || !isolated() {
		return p, err
	}
	h.disk, err = newDisk(filepath.Join(l.images(), fmt.Sprint(len(l.hosts))), s.Data, l.size)
	return &onDisk{p, h.disk}, err
}

// wire connects a host with those that are there, and with this process.
func (l *lab) wire(h *host) error {
	if h.net == nil {
		return nil
	}
	connect := func(from, to *host) error {
		var src *network
		dial := to.net.dial
		if from != nil {
			src, dial = from.net, to.net.await
		}
		for _, port := range to.ports {
			addr := fmt.Sprintf("127.0.0.1:%d", port)
			at, err := src.listen(addr)
			if err != nil {
				return err
			}
			l.wires = append(l.wires, &wire{from, to, faultproxy.NewOn(at, addr, dial)})
		}
		return nil
	}
	err := connect(nil, h)
	for _, other := range l.hosts {
		if other != h && err == nil {
			err = errors.Join(connect(other, h), connect(h, other))
		}
	}
	return err
}

// isolate keeps a host and all others from reaching each other, without a word; this process and
// its workers reach them all.
func (l *lab) isolate(h *host, m faultproxy.Mode) {
	for _, w := range l.wires {
		if w.from != nil && (w.from == h || w.to == h) {
			w.proxy.Set(m)
		}
	}
}

// at returns the host of an address.
func (l *lab) at(addr string) *host {
	i := slices.IndexFunc(l.hosts, func(h *host) bool {
		return strings.HasSuffix(addr, fmt.Sprintf(":%d", h.ports[0]))
	})
	return l.hosts[i]
}

// disks reports whether each server has a disk of its own.
func (l *lab) disks() bool { return l.size > 0 && l.hosts[0].disk != nil }

// sync is what a machine does in time: what was installed is on its disk.
func (l *lab) sync() error {
	var errs []error
	for _, h := range l.hosts {
		if h.disk != nil {
			errs = append(errs, h.disk.sync())
		}
	}
	return errors.Join(errs...)
}

// move moves the clock of a server.
func (l *lab) move(s *servers.Server, by time.Duration) error {
	f, err := os.OpenFile(l.at(s.Addr()).clock, os.O_WRONLY, 0) // in place: the server has it mapped
	if err != nil {
		return err
	}
	_, err = f.Write(binary.NativeEndian.AppendUint64(nil, uint64(by)))
	return errors.Join(err, f.Close())
}

// startWith starts servers, closes them after the test, and skips the test where their programs are missing, unless
// FENCELOCK_REQUIRE lists them.
func startWith[S interface{ Close() error }](t *testing.T, store string, f func(context.Context) (S, error)) S {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // the first time etcd is built
	defer cancel()
	s, err := f(ctx)
	if errors.Is(err, stores.ErrMissing) {
		list := "," + strings.ReplaceAll(os.Getenv("FENCELOCK_REQUIRE"), " ", ",") + ","
		if strings.Contains(list, ",all,") || strings.Contains(list, ","+store+",") {
			t.Fatalf("%s is required and missing: %v", store, err)
		}
		t.Skipf("%s runs as a local program here: %v", store, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
