package file

import (
	"context"
	"hash/fnv"
	"net/url"
	"path/filepath"
	"runtime"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	buckets   = 64
	openLimit = 5 * time.Second // for a New, which has no ctx
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
// may use the directory.
type Driver struct {
	prefix  string
	clock   clock
	buckets [buckets]*bucket
	ears    *ears
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Gater   = (*Driver)(nil)
)

func init() { backend.Register("file", openURL) }

// New returns a driver for the locks of [backend.DefaultPrefix] in dir, which is
// made with mode 0700 if it is missing. The error matches [backend.ErrInvalid] if the directory
// cannot be used, and says why.
func New(dir string) (*Driver, error) {
	return NewWith(dir, Options{Prefix: backend.DefaultPrefix})
}

// NewWith is [New] with options.
func NewWith(dir string, o Options) (*Driver, error) {
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	return open(ctx, dir, o)
}

func openURL(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	o := Options{Prefix: q.Prefix(), NoSockets: !q.Bool("sockets", true)}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if (u.Host != "" && u.Host != "localhost") || u.User != nil {
		return nil, backend.Invalid("the file URL names a host or user: the locks are of this machine, want file:///absolute/path (three slashes)")
	}
	path := u.Path
	if runtime.GOOS == "windows" && len(path) > 2 && path[2] == ':' {
		path = path[1:] // file:///C:/locks
	}
	if path == "" || path == "/" {
		return nil, backend.Invalid("the file URL has no path: want file:///absolute/path of a directory for the locks")
	}
	d, err := open(ctx, filepath.FromSlash(path), o)
	if err != nil {
		return nil, err // and not a nil *Driver in a Driver
	}
	return d, nil
}

func open(ctx context.Context, dir string, o Options) (*Driver, error) {
	if err := backend.CheckPrefix(o.Prefix); err != nil {
		return nil, err
	}
	dir, err := prepare(dir)
	if err != nil {
		return nil, err
	}
	c, err := newClock()
	if err != nil {
		return nil, err
	}
	d := &Driver{prefix: o.Prefix, clock: c}
	for i := range d.buckets {
		d.buckets[i] = newBucket(dir, i, c)
	}
	d.ears = newEars(dir, o.NoSockets, d.verify)
	if err := d.buckets[0].mark(ctx, dir); err != nil {
		_ = d.Close() // the error of the directory is the one to report
		return nil, err
	}
	return d, nil
}

// Traits implements [backend.Driver].
func (d *Driver) Traits() backend.Traits { return backend.TraitsOf("file") }

// Close implements [backend.Driver]. A second Close is nil.
func (d *Driver) Close() error {
	d.ears.close()
	for _, b := range d.buckets {
		b.close()
	}
	return nil
}

// bucket returns where a name of this driver's prefix is kept.
func (d *Driver) bucket(name string) *bucket { return d.buckets[place(d.prefix, name)] }

// place is the index of a name's bucket. It is part of the format.
func place(prefix, name string) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(prefix + "\x00" + name)) // a hash returns no error
	sum := h.Sum64()
	return int((sum ^ sum>>32) % buckets)
}
