package doctor

import (
	"golang.org/x/sys/unix"
)

// networked names the file systems that several machines can write at once.
var networked = map[uint32]string{
	unix.NFS_SUPER_MAGIC: "NFS", unix.SMB_SUPER_MAGIC: "SMB", unix.SMB2_SUPER_MAGIC: "SMB",
	unix.CIFS_SUPER_MAGIC: "CIFS", unix.CEPH_SUPER_MAGIC: "Ceph", unix.AFS_SUPER_MAGIC: "AFS",
	unix.CODA_SUPER_MAGIC: "Coda", unix.V9FS_MAGIC: "9p", unix.OCFS2_SUPER_MAGIC: "OCFS2",
	unix.FUSE_SUPER_MAGIC: "FUSE", 0x0BD00BD0: "Lustre", 0x01161970: "GFS2", 0x47504653: "GPFS",
}

// volumeOf asks about the file system of a directory.
func volumeOf(dir string) (volume, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return volume{}, err
	}
	v := volume{
		network:  networked[uint32(st.Type)],
		readOnly: st.Flags&unix.ST_RDONLY != 0,
		free:     st.Bavail * uint64(st.Bsize),
		files:    st.Ffree, counted: st.Files > 0,
		known: true,
	}
	return v, nil
}

// mayWrite returns nil if this user may use the directory.
func mayWrite(dir string) error { return unix.Access(dir, unix.R_OK|unix.W_OK|unix.X_OK) }
