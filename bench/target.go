package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/bench/internal/raw"
)

const (
	openMost = 10 * time.Second // to open everything of one backend
	wipeMost = 10 * time.Second // to empty the prefix
)

// A Target is a backend to measure. Its driver's package must be imported.
type Target struct {
	Name string // its label; empty: the backend's name
	URL  string
}

// bed is an open target: two clients of the library, so that one can hand over to the other, and
// the raw store.
type bed struct {
	label  string
	traits backend.Traits
	ttl    time.Duration
	dial   func(ctx context.Context) (backend.Driver, error)
	one    *fencelock.Locker
	two    *fencelock.Locker
	raw    raw.Store // nil if there is none
	query  *backend.Query
}

func (t Target) open(ctx context.Context) (*bed, error) {
	ctx, cancel := context.WithTimeout(ctx, openMost)
	defer cancel()
	u, err := backend.ParseURL(t.URL)
	if err != nil {
		return nil, err
	}
	b := &bed{ttl: fencelock.DefaultTTL}
	p, err := b.prepare(u)
	if err != nil {
		return nil, err
	}
	if b.one, err = b.locker(ctx); err != nil {
		return nil, err
	}
	b.traits = b.one.Traits()
	b.label = cmp.Or(t.Name, b.traits.Name)
	if b.two, err = b.locker(ctx); err == nil {
		p.Query = b.query
		b.raw, err = raw.Open(ctx, p)
	}
	if err != nil {
		return nil, errors.Join(err, b.close(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// prepare makes dial for a keyspace of this run's own, and returns the keyspace's place.
func (b *bed) prepare(u *url.URL) (raw.Place, error) {
	keys, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return raw.Place{}, backend.Invalid("the query of the %q URL cannot be read", u.Scheme)
	}
	own := keys.Get("prefix")
	if !keys.Has("prefix") {
		own = backend.DefaultPrefix
	}
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	p := raw.Place{URL: u, ID: "bench" + hex.EncodeToString(random[:])}
	p.Prefix = own + p.ID + ":"
	ours, at := maps.Clone(keys), *u
	ours.Set("prefix", p.Prefix)
	at.RawQuery = ours.Encode()
	if at.Host+at.Path == "" { // memory://, which would be written memory:
		at.Path = "/"
	}
	b.dial = func(ctx context.Context) (backend.Driver, error) {
		return backend.Open(ctx, at.String(), func(q *backend.Query) {
			b.query, b.ttl = q, q.Duration("ttl", fencelock.DefaultTTL)
		})
	}
	if u.Scheme != "memory" {
		return p, nil
	}
	d, err := b.dial(context.Background()) // checks the URL
	if err != nil {
		return p, err
	}
	store, ok := d.(*memory.Driver) // each Open of the URL would be a store of its own
	if !ok {
		return p, backend.Unsupported("the driver of memory:// is a %T", d)
	}
	b.dial = func(context.Context) (backend.Driver, error) { return store.Client(p.Prefix) }
	return p, nil
}

// locker opens another client.
func (b *bed) locker(ctx context.Context, opts ...fencelock.Option) (*fencelock.Locker, error) {
	d, err := b.dial(ctx)
	switch {
	case err != nil && !backend.Final(err):
		return nil, backend.Unavailable(err)
	case err != nil:
		return nil, err
	}
	l, err := fencelock.New(d, append([]fencelock.Option{fencelock.WithTTL(b.ttl)}, opts...)...)
	if err != nil {
		_ = d.Close() // the option's error is the one to report
	}
	return l, err
}

// nameOf is the name that a goroutine locks. Its braces choose the same slot of a Redis Cluster in every
// run, and so the keys that Redis keeps for a slot.
func nameOf(worker int) string { return fmt.Sprintf("{%d}", worker) }

// close frees everything and empties the keyspace.
func (b *bed) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wipeMost)
	defer cancel()
	var errs []error
	for _, l := range []*fencelock.Locker{b.two, b.one} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	if b.raw != nil {
		errs = append(errs, b.raw.Wipe(ctx), b.raw.Close())
	}
	return errors.Join(errs...)
}
