package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// bucket is one lock file and the state that it guards.
type bucket struct {
	home              *home
	index             int
	lock, path, spare string

	turn chan struct{} // held by the goroutine of this driver that may try the flock

	// Guarded by turn.
	file   *os.File // the lock file, open
	closed bool
	raw    []byte // the state file as last read or written,
	st     *state // and what it says; nil when unknown
}

func newBucket(h *home, index int) *bucket {
	base := filepath.Join(h.dir, fmt.Sprintf("%02x", index))
	return &bucket{
		home: h, index: index,
		lock: base + ".lock", path: base + ".state", spare: base + ".spare",
		turn: make(chan struct{}, 1),
	}
}

// update runs fn on the bucket's state while nobody else can change it, writes the state if fn says
// that it changed it, and returns fn's error. Once fn has run, the result does not depend on ctx. Any other error is a
// [backend.Refusal].
func (b *bucket) update(ctx context.Context, fn func(st *state) (changed bool, err error)) error {
	if err := b.enter(ctx); err != nil {
		return backend.Refusal(err)
	}
	defer b.leave()
	st, raw, err := b.read(b.st, b.raw)
	if err != nil {
		return backend.Refusal(err)
	}
	b.st = nil // unknown until it is written
	changed, answer := fn(st)
	if changed {
		st.sweep()
		if raw, err = b.write(st, raw); err != nil {
			return backend.Refusal(err)
		}
	}
	b.st, b.raw = st, raw
	return answer
}

// write puts a state in the place of what stands in the file as old, and returns what stands there then.
//
// A file that has to be larger is first written as it was, but in the new size. Then the spare has that size too, and
// a renewal or release of what this write grants needs no space, which a disk may not have any more.
func (b *bucket) write(st *state, old []byte) ([]byte, error) {
	body := st.encode(b.index)
	need := len(body) + sumSize
	size := room(need, len(old))
	var err error
	if size > len(old) {
		was := newState(b.home.boot, 0).encode(b.index)
		if len(old) > 0 {
			was = slices.Clip(old[:len(old)-sumSize])
		}
		err = replace(b.path, b.spare, seal(was, size))
	}
	raw := seal(body, size)
	if err == nil {
		err = replace(b.path, b.spare, raw)
	}
	if err != nil && need <= len(old) && size > len(old) { // what there is will do
		raw = seal(body, len(old))
		err = replace(b.path, b.spare, raw)
	}
	return raw, err
}

// room is how large a file is to be in which so many bytes are needed, and which has some size: whole blocks, with
// some to spare, for a renewal may need a few bytes more. It shrinks only by far.
func room(need, size int) int {
	if least := need + need/16; size%block != 0 || size < least || size/4 > least {
		size = (need + need/8 + block) / block * block
	}
	return size
}

// snapshot returns the bucket's state as of some moment of the call. It is the caller's.
func (b *bucket) snapshot(ctx context.Context) (st *state, err error) {
	for range freeReads {
		if st, _, err = b.read(nil, nil); err == nil {
			return st, ctx.Err()
		}
	}
	// It was written while it was read, or is as bad as it looks.
	if err = b.enter(ctx); err == nil {
		defer b.leave()
		st, _, err = b.read(nil, nil)
	}
	return st, err
}

// read returns the state as it is on disk, which is st if that stands there as raw.
func (b *bucket) read(st *state, raw []byte) (*state, []byte, error) {
	found, err := os.ReadFile(b.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		st, found = newState(b.home.boot, 0), nil
	case err != nil:
		return nil, nil, refused(err)
	case st == nil || !bytes.Equal(found, raw):
		if st, err = decode(found, b.index); err != nil {
			return nil, nil, backend.Invalid("%s is not a state file that this program can read: "+
				"%w; its locks stay shut. Stop the programs that use the directory, then remove it",
				b.path, err)
		}
	}
	if st.boot != b.home.boot {
		// The holders and waiters from before the reboot are gone, and the times mean nothing.
		maps.DeleteFunc(st.records, func(_ key, r record) bool { return r.until != 0 })
		kept := st.records
		st = newState(b.home.boot, st.counter)
		st.records = kept
	}
	st.at = backend.Now()
	st.now = sharedTime(st.at)
	return st, found, nil
}

// replace gives a file new contents so that a reader who opens it sees the old ones
// or the new ones, whole, whenever this process is killed. The caller is the only writer of
// both. The contents of spare do not matter.
//
// Where the system can, the two files change places, and the old contents are the
// next spare: then nothing is created, removed or cut to nothing, which on ext4 takes up to a
// millisecond each. So a reader that has opened the file before may see it overwritten while it
// reads: the checksum tells.
func replace(path, spare string, raw []byte) error {
	f, err := os.OpenFile(spare, os.O_WRONLY|os.O_CREATE|nofollow, 0o600)
	if err != nil {
		return refused(err)
	}
	_, err = f.Write(raw)
	if info, e := f.Stat(); err == nil && (e != nil || info.Size() > int64(len(raw))) {
		err = f.Truncate(int64(len(raw)))
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if exchange(path, spare) {
		return nil
	}
	return refused(os.Rename(spare, path))
}

// enter waits until this goroutine alone, of all processes, may change the bucket. It never blocks
// in the system: a wait there could not be ended, nor be seen by virtual time.
func (b *bucket) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return stuck(ctx, b.lock)
	}
	ours, err := b.try(ctx)
	for p := 20 * time.Microsecond; !ours && err == nil; p = min(2*p, time.Millisecond) {
		select {
		case <-time.After(p):
			ours, err = b.try(ctx)
		case <-ctx.Done():
			err = stuck(ctx, b.lock)
		}
	}
	if err != nil {
		<-b.turn
	}
	return err
}

// leave ends what enter began.
func (b *bucket) leave() {
	unlock(b.file)
	<-b.turn
}

// try makes one attempt at the flock of the lock file that has the name now.
func (b *bucket) try(ctx context.Context) (ours bool, err error) {
	if b.closed {
		return false, backend.ErrClosed
	}
	if b.file == nil {
		if b.file, err = os.OpenFile(b.lock, os.O_RDWR|os.O_CREATE|nofollow, 0o600); err != nil {
			return false, refused(err)
		}
		if err = b.home.enter(ctx); err != nil {
			b.forget()
			return false, err
		}
	}
	if ours, err := tryLock(b.file); !ours || err != nil {
		return false, err
	}
	// Others would lock another file if somebody has removed this one, or the whole directory.
	if ours, err = hasItsName(b.file); !ours {
		b.forget()
	}
	return ours, err
}

// forget closes the lock file, which gives up the flock. Nothing was written to it.
func (b *bucket) forget() {
	_ = b.file.Close()
	b.file = nil
}

// stuck is the error of a call that has waited for the flock of a file until ctx ended.
func stuck(ctx context.Context, path string) error {
	return fmt.Errorf("%w: another process or goroutine keeps %s locked, which takes microseconds "+
		"unless it is stopped", ctx.Err(), path)
}

func (b *bucket) close() {
	b.turn <- struct{}{}
	defer func() { <-b.turn }()
	b.closed = true
	b.forget()
}
