package natskv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
)

// Options change what New does. The zero value is the default.
type Options struct {
	// Bucket is the KV bucket, made if it is not there; default "fencelock".
	Bucket string
	// Prefix is the keyspace; default backend.DefaultPrefix, none with NoPrefix.
	Prefix   string
	NoPrefix bool
}

// Driver speaks to one bucket. It implements backend.Driver, backend.Checker and backend.Raiser.
type Driver struct {
	nc             *nats.Conn
	own            bool // we opened nc
	js             jetstream.JetStream
	stream         jetstream.Stream
	bucket, prefix string
	link           *link
	known          known

	mu    sync.Mutex
	clock clock
}

var (
	_ backend.Driver  = (*Driver)(nil)
	_ backend.Checker = (*Driver)(nil)
	_ backend.Raiser  = (*Driver)(nil)
)

// Traits is what the driver promises; the package comment says what that rests on.
func (d *Driver) Traits() backend.Traits {
	return backend.Traits{
		Name: "nats", Fencing: backend.Anchored, FIFO: true, Grace: true,
		DeadWaiter: 5 * time.Second, MinTTL: 200 * time.Millisecond, Resolution: time.Millisecond,
		Revoked: time.Second,
	}
}

// New returns a driver over a connection that the program has, which stays the program's. It asks the server for
// the bucket.
func New(ctx context.Context, nc *nats.Conn, o *Options) (*Driver, error) {
	if o == nil {
		o = &Options{}
	}
	d := &Driver{nc: nc, bucket: o.Bucket, prefix: o.Prefix}
	if d.bucket == "" {
		d.bucket = "fencelock"
	}
	if d.prefix == "" && !o.NoPrefix {
		d.prefix = backend.DefaultPrefix
	}
	if strings.Trim(strings.ToLower(d.bucket), "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return nil, backend.Invalid("bucket %q: letters, digits, _ and - are allowed", d.bucket)
	}
	if err := backend.CheckPrefix(d.prefix); err != nil {
		return nil, err
	}
	var err error
	if d.js, err = jetstream.New(nc); err != nil {
		return nil, err
	}
	if err := d.ensure(ctx); err != nil {
		return nil, err
	}
	d.link = newLink(nc)
	return d, nil
}

// config is the bucket's stream. Nothing is ever deleted to make room, and the leader answers reads. What was stored is
// published once more: a subscriber to the keys themselves would hear of a record before it is there, and of those that are refused.
func (d *Driver) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: "KV_" + d.bucket, Subjects: []string{d.subject(">")},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowMsgTTL: true,
		Storage: jetstream.FileStorage, RePublish: &jetstream.RePublish{Source: d.subject(">"), Destination: d.pushed(">")},
	}
}

// ensure makes the bucket if it is not there, and refuses one that would forget locks.
func (d *Driver) ensure(ctx context.Context) error {
	want := d.config()
	s, err := d.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = d.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another client was faster
			s, err = d.js.Stream(ctx, want.Name)
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
		{got.RePublish == nil || got.RePublish.Destination != d.pushed(">"), "no republishing to " + d.pushed(">")},
		{got.AllowDirect, "direct reads, which a follower may answer from the past"},
	} {
		if c.wrong {
			return backend.Invalid("the stream %s has %s: let this driver make the bucket, or make one as it does", want.Name, c.what)
		}
	}
	if d.stream == nil {
		d.stream = s
	}
	return nil
}

// twice does one step, and once more if its outcome is unknown: every step finds what was done before.
func (d *Driver) twice(ctx context.Context, do func(context.Context) error) error {
	err := d.link.once(ctx, do)
	if err == nil || backend.Final(err) || ctx.Err() != nil {
		return err
	}
	if missing(err) { // the server has lost its data, or is about to find them
		if err := d.link.once(ctx, d.ensure); err != nil {
			return err
		}
	}
	return d.link.once(ctx, do)
}

// Close implements backend.Driver.
func (d *Driver) Close() error {
	d.link.close()
	if d.own {
		d.nc.Close()
	}
	return nil
}
