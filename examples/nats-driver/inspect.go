package natskv

import (
	"context"
	"encoding/hex"
	"iter"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
)

// look reads a record and the time.
func (d *Driver) look(ctx context.Context, name string) (rec record, now int64, err error) {
	err = d.twice(ctx, func(ctx context.Context) error {
		c, err := d.calibrated(ctx)
		if err != nil {
			return err
		}
		v, err := d.read(ctx, name)
		rec, now = v.record, c.now()
		return err
	})
	return rec, now, err
}

// Inspect implements backend.Driver.
func (d *Driver) Inspect(ctx context.Context, name string) (backend.Info, error) {
	rec, now, err := d.look(ctx, name)
	if err != nil {
		return backend.Info{}, err
	}
	rec.tidy(now)
	info := backend.Info{Name: name, Waiters: len(rec.Queue)}
	if rec.Holder != nil {
		info.Held, info.Owner, info.Token, info.ExpiresIn = true, rec.Holder.Owner, rec.Token, rec.left(now)
	}
	return info, nil
}

// List implements backend.Driver. It asks the stream for its keys, and reads each record.
func (d *Driver) List(ctx context.Context, prefix string) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		var subjects map[string]uint64
		if err := d.twice(ctx, func(ctx context.Context) error {
			info, err := d.stream.Info(ctx, jetstream.WithSubjectFilter(d.subject(d.space()+"*")))
			if err == nil {
				subjects = info.State.Subjects
			}
			return err
		}); err != nil {
			yield(backend.Info{}, err)
			return
		}
		for subject := range subjects {
			name, ok := d.name(subject)
			if !ok || !strings.HasPrefix(name, prefix) {
				continue
			}
			info, err := d.Inspect(ctx, name)
			if err == nil && !info.Held && info.Waiters == 0 {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// name returns whose record a subject has; false for one that is no lock's.
func (d *Driver) name(subject string) (string, bool) {
	encoded, ok := strings.CutPrefix(subject, d.subject(d.space()+"n"))
	name, err := hex.DecodeString(encoded)
	return string(name), ok && err == nil && backend.CheckName(string(name)) == nil
}
