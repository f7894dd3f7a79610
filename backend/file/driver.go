package file

import (
	"context"
	"slices"

	"github.com/fencelock/fencelock/backend"
)

// Options of [NewWith].
type Options struct {
	// Prefix is the keyspace: locks of different prefixes are different. It may be empty.
	Prefix string
	// NoSockets: waiters are not woken by sockets, but look every 50 ms. For
	// directories in which sockets cannot be made, and for virtual time, in which a
	// read of a socket would stop the clock.
	NoSockets bool
}

// Driver keeps locks in the files of one directory. Its methods may be called
// by many goroutines at once; any number of drivers, in this process and others,
// may use the directory. It implements backend.Mover.
type Driver struct{ *store }

var _ backend.Mover = (*Driver)(nil)

// New returns a driver for the locks of [backend.DefaultPrefix] in dir, which is
// made with mode 0700 if it is missing. The error matches [backend.ErrInvalid] if the directory
// cannot be used, and says why.
func New(dir string) (*Driver, error) {
	return NewWith(dir, Options{Prefix: backend.DefaultPrefix})
}

// NewWith is [New] with options.
func NewWith(dir string, o Options) (*Driver, error) { return open(context.Background(), dir, o) }

func open(ctx context.Context, dir string, o Options) (*Driver, error) {
	if err := backend.CheckPrefix(o.Prefix); err != nil {
		return nil, err
	}
	dir, err := prepare(dir)
	if err != nil {
		return nil, err
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	s := &store{prefix: o.Prefix, home: &home{dir: dir, boot: boot}, hub: newHub(dir, o.NoSockets)}
	if err := s.home.enter(ctx); err != nil {
		return nil, err
	}
	for i := range s.buckets {
		s.buckets[i] = newBucket(s.home, i)
	}
	return &Driver{s}, nil
}

// store is a backend.Mover: a keyspace of a directory.
type store struct {
	prefix  string
	home    *home
	buckets [buckets]*bucket
	hub     *hub
}

// Traits implements [backend.Driver].
func (s *store) Traits() backend.Traits { return backend.TraitsOf("file") }

// Calls implements [backend.Driver]. A write is about one name.
func (s *store) Calls() backend.Calls { return backend.Calls{Most: 1} }

// Close implements [backend.Driver]. A second Close is nil.
func (s *store) Close() error {
	for _, b := range s.buckets {
		b.close()
	}
	s.hub.close()
	_ = s.home.file.Load().Close() // which gives up the flock; a second Close is no error here
	return nil
}

// change applies to a name's lock what time has done to it, but to the waiter me, and runs step on
// it, which reports whether it changed anything. l is nil if the lock is neither held nor waited
// for. Once that is written waiters that may have it are told; those whose process is gone are dropped.
func (s *store) change(
	ctx context.Context, name, me string, step func(st *state, l *lock) (changed bool, err error),
) error {
	k := s.key(name)
	var wakes []wakeUp
	var answer error
	err := s.bucket(name).update(ctx, func(st *state) (changed bool, err error) {
		l := st.locks[k]
		settled := l.settle(st.now, me)
		changed, answer = step(st, l)
		var served bool
		wakes, served = st.locks[k].serve(st.now)
		return changed || settled || served, nil
	})
	if err != nil {
		return err
	}
	if gone := s.hub.tell(wakes); gone != nil { // if this fails, the others look in time
		_ = s.change(ctx, name, me, func(st *state, l *lock) (bool, error) {
			return l.drop(st.now, func(w waiter) bool { return slices.Contains(gone, w.socket) }), nil
		})
	}
	return answer
}
