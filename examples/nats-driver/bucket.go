package natskv

import (
	"context"
	"errors"
	"iter"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend/record"
)

// bucket is a record.KV.
type bucket struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	name   string
	stream atomic.Pointer[jetstream.Stream]
	end    func() // closes nc, if that is ours
}

// subject is where a key is written; pushed is where the stream publishes what it has stored there.
func (b *bucket) subject(key string) string { return "$KV." + b.name + "." + key }
func (b *bucket) pushed(key string) string  { return "fencelock.stored." + b.name + "." + key }

// Get implements record.KV: the last message of a key, as the stream's leader has it.
func (b *bucket) Get(ctx context.Context, key string) (record.Value, error) {
	m, err := (*b.stream.Load()).GetLastMsgForSubject(ctx, b.subject(key))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return record.Value{}, nil
	case err != nil:
		return record.Value{}, b.mended(ctx, err)
	}
	return record.Value{Data: m.Data, Version: b.version(m.Sequence), At: m.Time}, nil
}

// Put implements record.KV: a publish that the stream refuses if the key has another last message.
func (b *bucket) Put(
	ctx context.Context, key string, data []byte, was string, keep time.Duration,
) (string, error) {
	var last uint64 // no message
	if was != "" {
		stream, sequence, _ := strings.Cut(was, ".")
		if stream != b.made() {
			return "", record.ErrMoved
		}
		var err error
		if last, err = strconv.ParseUint(sequence, 10, 64); err != nil {
			return "", err
		}
	}
	opts := []jetstream.PublishOpt{
		jetstream.WithExpectLastSequencePerSubject(last), jetstream.WithRetryAttempts(0),
	}
	if keep > 0 { // in whole seconds, as message TTLs are
		keep = (keep + time.Second - 1).Truncate(time.Second)
		opts = append(opts, jetstream.WithMsgTTL(keep))
	}
	msg := &nats.Msg{Subject: b.subject(key), Data: data, Header: nats.Header{}}
	ack, err := b.js.PublishMsg(ctx, msg, opts...)
	var api *jetstream.APIError
	switch {
	case err == nil:
		return b.version(ack.Sequence), nil
	case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return "", record.ErrMoved
	}
	return "", b.mended(ctx, err)
}

// version names the stream too, for the sequences of one that was made again begin anew.
func (b *bucket) version(sequence uint64) string {
	return b.made() + "." + strconv.FormatUint(sequence, 10)
}

// made is when the stream was.
func (b *bucket) made() string {
	return strconv.FormatInt((*b.stream.Load()).CachedInfo().Created.UnixNano(), 36)
}

// mended returns err. If the server has lost the stream, or has not found it yet, it is made again
// before.
func (b *bucket) mended(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse) {
		_ = b.ensure(ctx) // the next request tells
	}
	return err
}

// Now implements record.KV.
func (b *bucket) Now(ctx context.Context) (time.Time, error) {
	info, err := (*b.stream.Load()).Info(ctx)
	if err != nil {
		return time.Time{}, b.mended(ctx, err)
	}
	return info.TimeStamp, nil
}

// Epoch implements record.KV.
func (b *bucket) Epoch() uint64 { return b.nc.Stats().Reconnects }

// Keys implements record.KV.
func (b *bucket) Keys(ctx context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		space, _, _ := strings.Cut(prefix, ".")
		info, err := (*b.stream.Load()).Info(ctx,
			jetstream.WithSubjectFilter(b.subject(space+".*")))
		if err != nil {
			yield("", b.mended(ctx, err))
			return
		}
		for subject := range info.State.Subjects {
			key := strings.TrimPrefix(subject, b.subject(""))
			if strings.HasPrefix(key, prefix) && !yield(key, nil) {
				return
			}
		}
	}
}

// Watch implements record.KV.
func (b *bucket) Watch(key string, changed func(record.Value)) (func(), error) {
	sub, err := b.nc.Subscribe(b.pushed(key), func(m *nats.Msg) {
		changed(record.Value{Data: m.Data, At: time.Now()})
	})
	if err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil // a connection that is closed has none
}

// Close implements record.KV.
func (b *bucket) Close() error {
	b.end()
	return nil
}
