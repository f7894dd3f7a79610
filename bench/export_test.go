package bench

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/raw"
)

// OpenCounter returns what counts the commands that the server of a URL has served, and whether it tells.
func OpenCounter(ctx context.Context, rawURL string) (count func() (int64, bool), closeIt func() error, err error) {
	u, err := backend.ParseURL(rawURL)
	if err != nil {
		return nil, nil, err
	}
	b := &bed{}
	p, err := b.prepare(u)
	if err != nil {
		return nil, nil, err
	}
	d, err := b.dial(ctx)
	if err != nil {
		return nil, nil, err
	}
	p.Query, p.ID = b.query, "counter"+rand.Text()[:8]
	r, err := raw.Open(ctx, p)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, nil, err
	}
	return func() (int64, bool) { return r.Commands(ctx) }, r.Close, nil
}
