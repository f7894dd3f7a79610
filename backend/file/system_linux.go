package file

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
)

// anchor and anchorTime are one moment, told by both clocks. There is one for the process, so that
// in a testing/synctest bubble, where only Instants move, all drivers agree.
var anchor, anchorTime = newAnchor()

// newAnchor reads the two clocks one after the other: of several readings the closest is right to
// within its width.
func newAnchor() (at backend.Instant, boot int64) {
	width := time.Duration(math.MaxInt64)
	for range 20 {
		before := backend.Now()
		var ts unix.Timespec
		err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
		if w := before.Elapsed(); err == nil && w < width {
			width, at, boot = w, before.Add(w/2), ts.Nano()
		}
	}
	return at, boot
}

// sharedTime tells a moment by the clock that all processes of this machine share: nanoseconds of
// CLOCK_BOOTTIME, valid for one boot of the kernel.
func sharedTime(i backend.Instant) int64 { return anchorTime + int64(i.Sub(anchor)) }

// bootID returns what tells this boot from others, or an error if the process does not have the
// shared clock because it lives in a time namespace of its own.
func bootID() (string, error) {
	raw, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	boot := strings.TrimSpace(string(raw))
	if err != nil || boot == "" {
		return "", backend.Unsupported("the kernel's boot id cannot be read, without which holds "+
			"of before a reboot cannot be told: %q, %w", raw, err)
	}
	raw, _ = os.ReadFile("/proc/self/timens_offsets") // a kernel without time namespaces has none
	offsets := strings.Join(strings.Fields(string(raw)), " ")
	if offsets != "" && offsets != "monotonic 0 0 boottime 0 0" {
		return "", backend.Unsupported("this process is in a time namespace of its own (%s): "+
			"the locks need the clock of the machine", offsets)
	}
	return boot, nil
}

// inhabitMost is how long a directory is waited for in which another process is stopped.
const inhabitMost = time.Second

// inhabit opens the file BOOT of a directory, and returns it with a shared flock. It holds the boot id of all drivers
// that are open there: they have the flock, and the first one wrote it. A container can be given a boot id of its own.
// It is refused while others are there, because it would take their holds for those of before a reboot.
func inhabit(ctx context.Context, dir, boot string) (_ *os.File, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "BOOT"), os.O_RDWR|os.O_CREATE|nofollow, 0o600)
	if err != nil {
		return nil, refused(err)
	}
	defer func() {
		if err != nil {
			_ = f.Close() // the first error is the one to report
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, inhabitMost)
	defer cancel()
	for others := false; ; {
		alone, err := tryLock(f)
		if alone {
			if _, err = f.WriteAt([]byte(boot), 0); err == nil {
				err = f.Truncate(int64(len(boot)))
			}
		}
		if err != nil {
			return nil, err
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil { // it lets go of the exclusive one first
			raw, err := io.ReadAll(io.NewSectionReader(f, 0, 64))
			if err != nil || string(raw) == boot {
				return f, err
			}
			if others { // at the first time its writer may just have gone
				return nil, backend.Invalid("directory %q is in use under boot id %s, and the one of this process is "+
					"%s: want containers with the machine's /proc/sys/kernel/random/boot_id", dir, raw, boot)
			}
			others = true
		}
		select {
		case <-time.After(time.Millisecond): // others have it for microseconds
		case <-ctx.Done():
			return nil, backend.Unavailable(stuck(ctx, f.Name()))
		}
	}
}

// shared are the file systems that several machines can write at once.
var shared = map[uint32]string{
	unix.NFS_SUPER_MAGIC:   "NFS",
	unix.SMB_SUPER_MAGIC:   "SMB",
	unix.SMB2_SUPER_MAGIC:  "SMB",
	unix.CIFS_SUPER_MAGIC:  "CIFS",
	unix.CEPH_SUPER_MAGIC:  "Ceph",
	unix.AFS_SUPER_MAGIC:   "AFS",
	unix.CODA_SUPER_MAGIC:  "Coda",
	unix.V9FS_MAGIC:        "9p",
	unix.OCFS2_SUPER_MAGIC: "OCFS2",
	0x0BD00BD0:             "Lustre",
	0x01161970:             "GFS2",
	0x47504653:             "GPFS",
	0x19830326:             "BeeGFS",
	0x20030528:             "OrangeFS",
	0x786F4256:             "vboxsf",
	0xBACBACBC:             "hgfs",
}

// usable returns nil for a directory that this process may write and that no
// other machine does.
func usable(dir string) error {
	if err := unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return backend.Invalid("directory %q cannot be written by user %d: %w; "+
			"want a directory that this user may read, write and search", dir, unix.Geteuid(), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return backend.Invalid("directory %q: its file system cannot be told: %w", dir, err)
	}
	if kind, bad := shared[uint32(st.Type)]; bad {
		return backend.Invalid("directory %q is on %s, which several machines may share: these "+
			"locks hold on one machine only; want a local file system, or a backend with a server",
			dir, kind)
	}
	return nil
}

// exchange swaps two files in one step. It changes nothing and returns false
// where the file system cannot do that or one of the files does not exist.
func exchange(a, b string) bool {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) == nil
}
