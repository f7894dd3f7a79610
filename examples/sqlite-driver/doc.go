// Package sqlitekv is a driver of Fencelock for a SQL table in a SQLite file, outside the
// library: locks between the processes of one machine.
//
// Each name is one row, and package backend/record does the rest. A change is an INSERT or an
// UPDATE on the condition that the row still has the version that was read, and SQLite is the
// judge. What that promises stands in package record. It rests on these things:
//
//   - SQLite's own file locks. The file must be on a local disk; network file systems break them.
//   - The machine's wall clock, which stamps each row.
//   - The file stays the same file while programs use it: nobody replaces, moves or deletes it.
//   - Versions are random numbers of 63 bits. No two writes share one, even after the row was
//     deleted or the file came back from a copy.
//
// A power loss can take the last locks with it, but it ends their holders too: all of them ran on
// this machine. So a driver opened by URL uses the write-ahead log with synchronous=NORMAL, which
// does not wait for the disk at each write. New takes the program's database as it is.
//
// The rows that somebody waits for are polled, so a waiter learns of a change within about 20 ms.
// SQLite has one writer at a time, so all names share its speed.
//
// Not promised: anything between machines; that WithMinHold outlives a power loss. A clock that is
// set forward ends leases early. A program that is stopped in the middle of a write (SIGSTOP, a
// debugger) keeps all others from writing until it goes on: they get ErrUnavailable.
package sqlitekv
