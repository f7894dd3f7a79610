package natskv

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/record"
)

func init() { backend.Register("nats", open) }

// open makes a driver from nats://[user:password@|token@]host[:4222][,host…][/bucket][?prefix=…].
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	bucket, prefix := strings.Trim(u.Path, "/"), q.Prefix()
	if err := q.Err(); err != nil {
		return nil, err
	}
	opts := []nats.Option{
		nats.Name("fencelock"), nats.Timeout(2 * time.Second),
		// A late request is worth nothing: a request that cannot be sent now is dropped.
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.PingInterval(10 * time.Second),
		nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default one prints
	}
	if password, ok := u.User.Password(); ok {
		opts = append(opts, nats.UserInfo(u.User.Username(), password))
	} else if u.User != nil {
		opts = append(opts, nats.Token(u.User.Username()))
	}
	nc, err := nats.Connect(strings.Join(backend.Hosts(u, "4222"), ","), opts...)
	if errors.Is(err, nats.ErrAuthorization) {
		err = backend.Invalid("NATS refuses the user or the password: %w", err)
	}
	if err != nil {
		return nil, err
	}
	d, err := New(ctx, nc, bucket, prefix)
	if err != nil {
		nc.Close()
		return nil, err
	}
	d.Owns(func() error { nc.Close(); return nil })
	return d, nil
}

// Traits returns the promises of the driver; the package comment has their conditions.
func Traits() backend.Traits {
	return backend.Traits{
		Name: "nats", Fencing: backend.Anchored, FIFO: true, Grace: true,
		DeadWaiter: 5 * time.Second, MinTTL: 200 * time.Millisecond, Resolution: time.Millisecond,
		Revoked: time.Second,
	}
}

// New returns a driver over a connection that the program has, which stays the program's. The KV
// bucket, "fencelock" if that is "", is made if it is not there. prefix is the keyspace.
func New(ctx context.Context, nc *nats.Conn, bucket, prefix string) (*record.Driver, error) {
	if bucket == "" {
		bucket = "fencelock"
	}
	if strings.Trim(strings.ToLower(bucket), "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return nil, backend.Invalid("bucket %q: letters, digits, _ and - are allowed", bucket)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	kv := &kv{nc: nc, js: js, bucket: bucket}
	if kv.stream, err = kv.open(ctx); err != nil {
		return nil, err
	}
	return record.New(kv, prefix, Traits())
}

// open returns the bucket's stream, which it makes if it is not there. It refuses a stream that
// would forget locks.
//
// The stream deletes nothing to make room, and its leader answers reads. It publishes a stored record once
// more: a subscriber to the keys themselves would hear of a record before it is there, and of refused
// records.
func (kv *kv) open(ctx context.Context) (jetstream.Stream, error) {
	want := jetstream.StreamConfig{
		Name: "KV_" + kv.bucket, Subjects: []string{kv.subject(">")},
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true,
		AllowMsgTTL: true, Storage: jetstream.FileStorage,
		RePublish: &jetstream.RePublish{Source: kv.subject(">"), Destination: kv.stored(">")},
	}
	s, err := kv.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = kv.js.CreateStream(ctx, want)
	}
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another client was faster
		s, err = kv.js.Stream(ctx, want.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("the stream %s: %w", want.Name, err)
	}
	got := s.CachedInfo().Config
	for _, c := range []struct {
		wrong bool
		what  string
	}{
		{got.MaxMsgsPerSubject != 1, "a history of more than 1"},
		{got.Discard != jetstream.DiscardNew, "to discard old messages when it is full"},
		{got.MaxAge != 0, "a maximum age"},
		{!got.AllowMsgTTL, "no message TTLs"},
		{got.AllowDirect, "direct reads, which a follower may answer from the past"},
		{
			got.RePublish == nil || got.RePublish.Destination != want.RePublish.Destination,
			"no republishing to " + want.RePublish.Destination,
		},
	} {
		if c.wrong {
			return nil, backend.Invalid("the stream %s has %s: let this driver make the bucket, "+
				"or make one as it does", want.Name, c.what)
		}
	}
	kv.made.Store(s.CachedInfo().Created.UnixNano())
	return s, nil
}
