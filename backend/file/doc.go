// Package file is a backend for several processes on one machine: the locks are small files in a
// directory that all of them can write. It needs no server.
//
// # What a lease is made of
//
// A name belongs, by its hash, to one of 64 buckets. A bucket is a state file with all that is
// known of its names: their holders and until when, their waiters, and the last fencing token. To
// change it, a process takes an exclusive flock(2) on the bucket's lock file, for microseconds,
// writes the whole new state beside the old one, and renames it over that. A process that is killed
// at any point leaves the old state or the new one. Reading takes no lock, except on systems whose
// open files cannot be replaced.
//
// So a lease is not the flock: it is a record with an expiry, compared by nonce at every write. It
// outlives neither its TTL + grace nor the machine's boot. All processes of the machine share the
// clock of the expiry. On Linux it is CLOCK_BOOTTIME, which counts suspended time, and which no
// change of the wall clock moves; the kernel's boot id tells the holds of an earlier boot, which are
// dead. Elsewhere it is the wall clock: if that jumps, leases end early or late.
//
// A token is max(bucket's last token + 1, wall clock in µs, floor + 1), written in the same rename
// as the grant. It rises as long as the state files stay; if they are lost or put back from a
// backup, as long as the wall clock does not go back.
//
// Waiters stand in a queue in the state file, first come first served. A release leaves the lock
// to the first one, which has 1.6 s to take it, and wakes it by a datagram to a unix socket of its
// process in the directory. A waiter whose process is gone is skipped at once, because its socket
// refuses; a waiter that is stopped is skipped when its 1.6 s are over. Without such sockets
// (Windows, a directory with a very long path on systems other than Linux, [Options].NoSockets)
// waiters look every 50 ms instead. A datagram may get lost, so waiters also look every 5 s, and the
// first one, once it knows that it is, once a second.
//
// # Readers and permits
//
// A name has as many holders as may hold it at once, each with an expiry of its own. All modes
// wait in the one queue. When a holder or waiter comes or goes, the turn begins of all waiters at
// the head of the queue that may hold the name together, and their places count as held. Readers
// that hold at once have the token of the last of them that drew one; a permit has the least slot
// that is free.
//
// A reader or permit behind a waiter of another kind looks once a second whether the process of
// that waiter is gone, because its death frees nothing and wakes no waiter. A waiter that is
// stopped stays up to 8 s in their way, while the name is held by others that exclude it.
//
// A program from before there were readers and permits refuses a bucket with [backend.ErrInvalid]
// while one is held or waited for in it, and what it holds there is lost. So update all programs
// of a machine before one uses them. A bucket with exclusive locks alone is as ever.
//
// # What it does not promise
//
// It is for one machine. Linux tells network and shared file systems (NFS, SMB, Ceph, 9p and the
// like), and Open refuses them, but for one that is mounted by FUSE. Do not use them on other systems
// either: clocks, boot ids and renames of two machines have nothing to do with each other. Containers
// may share a directory if they run on one kernel, see the same directory, and have neither a time
// namespace nor a boot id of their own (LXC, systemd-nspawn), which is refused. All processes run as
// one user.
//
// Nothing is synced to the disk: a reboot ends all holds, and then the wall clock replaces the last
// token. After a power failure a state file may be an older one, with dead holds and perhaps older
// gates of a migration, or empty or cut short. An empty or cut file is an error that names it, and
// never a free lock, because the library cannot know what stood in it. After a reboot there are no
// holders, so the file may be removed.
//
// A full disk ends no lease on Linux, except on btrfs and ZFS: a state file and its spare have the
// space that a renewal and a release need, and the system exchanges the two in one step and writes in
// place. Elsewhere a renewal makes its spare anew. A request that finds no space is refused.
//
// Removing a state file frees the locks of its bucket: until their holders look, within a second,
// others may hold beside them. Nothing tells such a file from one that was never there.
//
// A process that is stopped (SIGSTOP, a debugger) just inside those microseconds keeps its
// bucket's flock: others of that bucket get their ctx's error, or ErrUnavailable from a Lock
// without a bound, until it goes on or is killed. Inspect and List work meanwhile.
//
// A write rewrites one bucket, that is a 64th of the locks that are held at once: tens of
// thousands are fine, millions are not. Close frees some 15,000 in its 5 s; what is left ends with its time.
//
// # What an operator sees
//
//	FORMAT              the version of the format and the number of buckets
//	BOOT                on Linux the boot id of the processes with the directory open: they share its flock
//	00.lock … 3f.lock   the files of flock(2): empty, made when needed, never removed
//	00.state … 3f.state the state, as text, ended by a checksum; not for editing
//	00.spare …          where the next state will be written: its content means nothing;
//	                    both are whole blocks of 4 KiB
//	wake-….sock         a process that waits or has waited; removed when it closes or was killed
//
// Files are 0600, and a directory that the driver makes is 0700. A name that is neither held nor
// waited for leaves only the nonces of its last holders and waiters, which make repeated and late
// requests harmless: at most 64 released and 1024 abandoned ones a bucket, swept when their TTL +
// grace + 10 s are over and the bucket is written. To start afresh, stop the programs and remove
// the directory.
package file
