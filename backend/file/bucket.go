package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// The pauses between two tries for a flock that another process has.
const (
	firstPause = 20 * time.Microsecond
	lastPause  = time.Millisecond
)

// bucket is one lock file and the state that it guards.
type bucket struct {
	index             int
	clock             clock
	lock, path, spare string

	turn chan struct{} // held by the goroutine of this driver that may try the flock

	// Guarded by turn.
	file   *os.File // the lock file, open
	closed bool
	raw    []byte // the state file as last read or written,
	st     *state // and what it says; nil when unknown
}

func newBucket(dir string, index int, c clock) *bucket {
	base := filepath.Join(dir, fmt.Sprintf("%02x", index))
	return &bucket{
		index: index, clock: c,
		lock: base + ".lock", path: base + ".state", spare: base + ".spare",
		turn: make(chan struct{}, 1),
	}
}

// update runs fn on the bucket's state while nobody else can change it, and
// writes the state if fn says that it changed it. at is a moment before now, which is the same on the
// shared clock. Once fn has run, the result does not depend on ctx.
func (b *bucket) update(ctx context.Context, fn func(st *state, at backend.Instant, now int64) bool) error {
	if err := b.enter(ctx); err != nil {
		return err
	}
	defer b.leave()
	st, err := b.load()
	if err != nil {
		return err
	}
	at := backend.Now()
	now := b.clock.at(at)
	b.st = nil // unknown until it is written
	if fn(st, at, now) {
		st.sweep(now)
		raw := st.encode(b.index)
		if err := replace(b.path, b.spare, raw); err != nil {
			return err
		}
		b.raw = raw
	}
	b.st = st
	return nil
}

// snapshot returns the bucket's state as of some moment of the call. It is the
// caller's.
func (b *bucket) snapshot(ctx context.Context) (*state, int64, error) {
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	for range freeReads {
		if raw, err := b.read(); err == nil {
			if st, err := b.parse(raw); err == nil {
				return st, b.clock.at(backend.Now()), nil
			}
		}
	}
	// It was written while it was read, or is as bad as it looks.
	if err := b.enter(ctx); err != nil {
		return nil, 0, err
	}
	defer b.leave()
	raw, err := b.read()
	if err != nil {
		return nil, 0, err
	}
	st, err := b.parse(raw)
	return st, b.clock.at(backend.Now()), err
}

// load returns the state as it is on disk. What was read or written last is not
// parsed again.
func (b *bucket) load() (*state, error) {
	raw, err := b.read()
	if err != nil {
		return nil, err
	}
	if b.st != nil && bytes.Equal(raw, b.raw) {
		return b.st, nil
	}
	st, err := b.parse(raw)
	if err != nil {
		return nil, err
	}
	b.raw = raw
	return st, nil
}

// read returns the state file; nil if there is none.
func (b *bucket) read() ([]byte, error) {
	raw, err := os.ReadFile(b.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, refused(err)
	case len(raw) == 0:
		return []byte{}, nil
	}
	return raw, nil
}

func (b *bucket) parse(raw []byte) (*state, error) {
	if raw == nil {
		return &state{boot: b.clock.boot}, nil
	}
	st, err := decode(raw, b.index)
	if err != nil {
		return nil, backend.Invalid("%s is not a state file that this program can read: %w; its locks stay shut. Stop the programs that use the directory, then remove the file", b.path, err)
	}
	if st.boot != b.clock.boot {
		// Whoever held or waited before the reboot is no more.
		st = &state{boot: b.clock.boot, counter: st.counter, gates: st.gates}
	}
	return st, nil
}

// enter waits until this goroutine alone, of all processes, may change the bucket.
func (b *bucket) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
	case <-ctx.Done():
		return b.stuck(ctx)
	}
	if err := b.flock(ctx); err != nil {
		<-b.turn
		return err
	}
	return nil
}

// leave ends what enter began.
func (b *bucket) leave() {
	unlock(b.file)
	<-b.turn
}

// flock takes the flock of the lock file that has the name now. It never blocks
// in the system: a wait there could not be ended, nor be seen by virtual time.
func (b *bucket) flock(ctx context.Context) error {
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		ours, err := b.try()
		if ours || err != nil {
			return err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return b.stuck(ctx)
		}
	}
}

// try makes one attempt at the flock.
func (b *bucket) try() (bool, error) {
	if b.closed {
		return false, backend.ErrClosed
	}
	if b.file == nil {
		f, err := os.OpenFile(b.lock, os.O_RDWR|os.O_CREATE|nofollow, 0o600)
		if err != nil {
			return false, refused(err)
		}
		b.file = f
	}
	ours, err := tryLock(b.file)
	if !ours || err != nil {
		return false, err
	}
	// Somebody may have removed the file, or the whole directory, since it was
	// opened: others would then lock another one.
	mine, err := b.file.Stat()
	if err == nil {
		var named fs.FileInfo
		if named, err = os.Stat(b.lock); err == nil && os.SameFile(mine, named) {
			return true, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		unlock(b.file)
		return false, refused(err)
	}
	_ = b.file.Close() // gives up the flock; nothing was written
	b.file = nil
	return false, nil
}

func (b *bucket) stuck(ctx context.Context) error {
	return fmt.Errorf("%w: another process or goroutine keeps %s locked, which takes microseconds unless it is stopped", ctx.Err(), b.lock)
}

func (b *bucket) close() {
	b.turn <- struct{}{}
	defer func() { <-b.turn }()
	b.closed = true
	if b.file != nil {
		_ = b.file.Close() // nothing was written to it
		b.file = nil
	}
}
