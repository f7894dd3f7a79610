package file

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// disk returns a file system of its own, and what fills it.
func disk(t *testing.T, size string) (dir string, fill func() (empty func())) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	dir = t.TempDir()
	if err := unix.Mount("fencelock-test", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skipf("mounting is not allowed here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
	return dir, func() func() {
		t.Helper()
		path := filepath.Join(dir, "filler")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for err == nil {
			_, err = f.Write(make([]byte, block))
		}
		if !errors.Is(err, unix.ENOSPC) {
			t.Fatalf("filling %s: %v", dir, err)
		}
		return func() {
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
		}
	}
}

// A disk that is full takes no lock that is held, however few or many there are, and frees what is released.
func TestFullDiskKeepsWhatIsHeld(t *testing.T) {
	for _, held := range []int{1, 40, 1000} {
		t.Run(fmt.Sprint(held), func(t *testing.T) {
			dir, fill := disk(t, "8m")
			d, other := newDriver(t, dir), newDriver(t, dir)
			var hs []*core.Hold
			for i := range held {
				hs = append(hs, take(t, d, try(fmt.Sprint("n", i), time.Minute)))
			}
			defer fill()()
			for _, d := range []caller{d, other, other, d} {
				for i, err := range d.Renew(t.Context(), hs) {
					wantErr(t, "Renew of "+hs[i].Name, err, nil)
				}
			}
			for _, h := range hs {
				release(t, d, h)
				if i := inspect(t, d, h.Name); i.Held {
					t.Errorf("%s is held after its release", h.Name)
				}
			}
		})
	}
}

// A renewal may need a few bytes more than the grant: for a later time, or the turn of a waiter.
func TestFullDiskHasRoomForTheClock(t *testing.T) {
	dir, fill := disk(t, "1m")
	d := newDriver(t, dir)
	var hs []*core.Hold
	var b *bucket
	takeOne := func(owner int) (need int) {
		r := try(fmt.Sprint("n", len(hs)), time.Minute)
		r.Owner = strings.Repeat("o", owner)
		for i := 0; b != nil && d.store.bucket(r.Name) != b; i++ {
			r.Name = fmt.Sprint("n", len(hs), " ", i)
		}
		hs, b = append(hs, take(t, d, r)), d.store.bucket(r.Name)
		return len(b.st.encode(b.index)) + sumSize
	}
	const most = block / 17 * 16 // what is more makes the file larger
	need := takeOne(1)
	for each := need; need+2*each < most; need = takeOne(1) {
	}
	last := takeOne(1)
	need, last = last, last-need
	takeOne(most - need - last - 8)
	if len(b.raw) != block {
		t.Fatalf("the file has %d bytes, want one block", len(b.raw))
	}
	fill()
	for _, h := range hs {
		h.Request.TTL = 200 * 365 * 24 * time.Hour
	}
	for i, err := range d.Renew(t.Context(), hs) {
		wantErr(t, "Renew of "+hs[i].Name, err, nil)
	}
	if need := len(b.st.encode(b.index)) + sumSize; need <= most {
		t.Errorf("the renewal needed %d bytes, want more than %d", need, most)
	}
}

// A request that finds no space is not done at all, so nobody has to make sure that it is undone.
func TestFullDiskRefuses(t *testing.T) {
	dir, fill := disk(t, "1m")
	d := newDriver(t, dir)
	empty := fill()
	c := &backend.Claim{Request: try("x", time.Minute)}
	d.store.Ask(t.Context(), []*backend.Claim{c})
	if !errors.Is(c.Err, unix.ENOSPC) || !backend.Refused(c.Err) || backend.Final(c.Err) {
		t.Errorf("Ask: got %v, want the word that nothing was done, and ENOSPC", c.Err)
	}
	d.store.Leave(t.Context(), []*backend.Claim{c})
	empty()
	wantErr(t, "Leave", c.Err, nil)
	if found := files(t, dir, "*.state"); len(found) > 0 {
		t.Errorf("left behind: %q", found)
	}
	take(t, d, try("x", time.Minute))
}
