//go:build linux

package guarantees_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// disk is a file system of a server's own, in a file. It is mounted in a namespace of this process
// and its children, so that it is gone with them, however they end.
//
// It is ext3, which cannot reserve room for a file: a log that was made large before the disk was full would go on.
type disk struct{ image, path string }

func newDisk(image, path string, size int64) (*disk, error) {
	d := &disk{image, path}
	f, err := os.Create(image)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(size), f.Close(), os.MkdirAll(path, 0o700)); err != nil {
		return nil, err
	}
	if err := tool("mke2fs", "-q", "-F", "-t", "ext3", "-m", "0", image); err != nil {
		return nil, err
	}
	if err := d.mount(); err != nil {
		return nil, err
	}
	return d, os.Remove(filepath.Join(path, "lost+found")) // servers want an empty folder
}

// mount mounts it. The kernel writes nothing by itself in the next minutes, and gives back what is removed.
func (d *disk) mount() error {
	return tool("mount", "-o", "loop,commit=300,discard", d.image, d.path)
}

func (d *disk) unmount() error { return tool("umount", d.path) }

func tool(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %q: %w: %s", name, args, err, out)
	}
	return nil
}

// open calls f with the open root of the disk.
func (d *disk) open(f func(fd uintptr) error) error {
	root, err := os.Open(d.path)
	if err != nil {
		return err
	}
	return errors.Join(f(root.Fd()), root.Close())
}

func (d *disk) sync() error {
	return d.open(func(fd uintptr) error { return unix.Syncfs(int(fd)) })
}

// shutdown is EXT4_IOC_SHUTDOWN: from now on nothing is written any more.
const shutdown = 0x8004587d

// lose is a power failure: what nobody has synced is gone. No server may run on it.
func (d *disk) lose() error {
	err := d.open(func(fd uintptr) error {
		flags := uint32(2) // not even the journal
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, fd, shutdown, uintptr(unsafe.Pointer(&flags))); e != 0 {
			return fmt.Errorf("shut %s down: %w", d.path, e)
		}
		return nil
	})
	if err == nil {
		err = errors.Join(d.unmount(), d.mount())
	}
	return err
}

// fill takes all the room that is left, and what a server frees meanwhile, until free is called.
func (d *disk) fill() (free func() error, err error) {
	f, err := os.Create(filepath.Join(d.path, "fill"))
	if err != nil {
		return nil, err
	}
	chunk := make([]byte, mib)
	fill := func() error {
		var err error
		for size := len(chunk); size > 0; size /= 2 { // to the last byte
			for err = nil; err == nil; {
				_, err = f.Write(chunk[:size])
			}
		}
		if !errors.Is(err, syscall.ENOSPC) {
			return err
		}
		return nil
	}
	if err := fill(); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		var err error
		for ticks := time.NewTicker(5 * time.Millisecond); ; {
			select {
			case <-ticks.C:
				err = errors.Join(err, fill())
			case <-stop:
				ticks.Stop()
				stopped <- err
				return
			}
		}
	}()
	return func() error {
		close(stop)
		return errors.Join(<-stopped, f.Close(), os.Remove(f.Name()))
	}, nil
}

// onDisk is a server's process with its disk.
type onDisk struct {
	stores.Process
	disk *disk
}

// Close ends the process and takes the disk away.
func (p *onDisk) Close() error {
	err := p.Process.Close()
	if p.disk != nil {
		err = errors.Join(err, p.disk.unmount(), os.Remove(p.disk.image))
		p.disk = nil
	}
	return err
}

// A power failure takes what was not synced, and nothing else; a full disk takes nothing more until it is free.
func TestDisk(t *testing.T) {
	if !isolated() {
		t.Skip("disks take the right to mount")
	}
	dir := t.TempDir()
	d, err := newDisk(filepath.Join(dir, "image"), filepath.Join(dir, "data"), 16<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.unmount(); err != nil {
			t.Error(err)
		}
	}()
	file := func(name string) string { return filepath.Join(d.path, name) }
	write := func(name string) error { return os.WriteFile(file(name), []byte(name), 0o600) }
	if err := errors.Join(write("synced"), d.sync(), write("written")); err != nil {
		t.Fatal(err)
	}
	if err := d.lose(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file("synced")); string(got) != "synced" {
		t.Errorf("what was synced: got %q, %v", got, err)
	}
	if got, err := os.ReadFile(file("written")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was only written: got %q, %v, want it gone", got, err)
	}
	free, err := d.fill()
	if err != nil {
		t.Fatal(err)
	}
	if err := write("more"); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk: got %v, want ENOSPC", err)
	}
	if err := errors.Join(free(), write("more")); err != nil {
		t.Error(err)
	}
}
