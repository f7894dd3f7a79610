package file

import (
	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/backend"
)

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
}

// usable returns nil for a directory that this process may write and that no
// other machine does.
func usable(dir string) error {
	if err := unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK); err != nil {
		return backend.Invalid("directory %q cannot be written by user %d: %w; want a directory that this user may read, write and search", dir, unix.Geteuid(), err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return backend.Invalid("directory %q: its file system cannot be told: %w", dir, err)
	}
	if kind, bad := shared[uint32(st.Type)]; bad {
		return backend.Invalid("directory %q is on %s, which several machines may share: these locks hold on one machine only; want a local file system, or a backend with a server", dir, kind)
	}
	return nil
}
