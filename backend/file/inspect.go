package file

import (
	"context"
	"iter"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// Inspect implements [backend.Driver].
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	st, now, err := d.bucket(name).snapshot(ctx)
	if err != nil {
		return backend.Info{}, err
	}
	if e := st.find(d.prefix, name); e != nil {
		return e.info(now), nil
	}
	return backend.Info{Name: name}, nil
}

// List implements [backend.Driver].
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		for _, b := range d.buckets {
			st, now, err := b.snapshot(ctx)
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			for _, e := range st.entries {
				if e.prefix != d.prefix || !strings.HasPrefix(e.name, prefix) {
					continue
				}
				if i := e.info(now); (i.Held || i.Waiters > 0) && !yield(i, nil) {
					return
				}
			}
		}
	}
}
