package natskv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/record"
)

// Options change what New does. The zero value is the default.
type Options struct {
	// Bucket is the KV bucket, made if it is not there; default "fencelock".
	Bucket string
	// Prefix is the keyspace; default backend.DefaultPrefix, none with NoPrefix.
	Prefix   string
	NoPrefix bool
}

// Traits is what the driver promises; the package comment says what that rests on.
func Traits() backend.Traits {
	return backend.Traits{
		Name: "nats", Fencing: backend.Anchored, FIFO: true, Grace: true,
		DeadWaiter: 5 * time.Second, MinTTL: 200 * time.Millisecond, Resolution: time.Millisecond,
		Revoked: time.Second,
	}
}

// New returns a driver over a connection that the program has, which stays the program's. It asks the
// server for the bucket.
func New(ctx context.Context, nc *nats.Conn, o *Options) (*record.Driver, error) {
	return newDriver(ctx, nc, o, func() {})
}

func newDriver(ctx context.Context, nc *nats.Conn, o *Options, end func()) (*record.Driver, error) {
	if o == nil {
		o = &Options{}
	}
	b := &bucket{nc: nc, name: o.Bucket, end: end}
	if b.name == "" {
		b.name = "fencelock"
	}
	prefix := o.Prefix
	if prefix == "" && !o.NoPrefix {
		prefix = backend.DefaultPrefix
	}
	if strings.Trim(strings.ToLower(b.name), "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return nil, backend.Invalid("bucket %q: letters, digits, _ and - are allowed", b.name)
	}
	var err error
	if b.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	if err := b.ensure(ctx); err != nil {
		return nil, err
	}
	return record.New(b, prefix, Traits())
}

// config is the bucket's stream. Nothing is ever deleted to make room, and the leader answers reads.
// What was stored is published once more: a subscriber to the keys themselves would hear of a record
// before it is there, and of those that are refused.
func (b *bucket) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + b.name, Subjects: []string{b.subject(">")},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true,
		AllowMsgTTL: true, Storage: jetstream.FileStorage,
		RePublish: &jetstream.RePublish{Source: b.subject(">"), Destination: b.pushed(">")},
	}
}

// ensure makes the bucket if it is not there, and refuses one that would forget locks.
func (b *bucket) ensure(ctx context.Context) error {
	want := b.config()
	s, err := b.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another client was faster
			s, err = b.js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return fmt.Errorf("the stream %s: %w", want.Name, err)
	}
	got := s.CachedInfo().Config
	for _, c := range []struct {
		wrong bool
		what  string
	}{
		{got.MaxMsgsPerSubject != 1, "a history of more than 1"},
		{got.Discard != jetstream.DiscardNew, "discards old messages when it is full"},
		{got.MaxAge != 0, "a maximum age"},
		{!got.AllowMsgTTL, "no message TTLs"},
		{
			got.RePublish == nil || got.RePublish.Destination != b.pushed(">"),
			"no republishing to " + b.pushed(">"),
		},
		{got.AllowDirect, "direct reads, which a follower may answer from the past"},
	} {
		if c.wrong {
			return backend.Invalid("the stream %s has %s: let this driver make the bucket, "+
				"or make one as it does", want.Name, c.what)
		}
	}
	b.stream.Store(&s)
	return nil
}
