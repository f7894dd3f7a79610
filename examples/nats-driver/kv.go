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

// kv is a record.KV.
type kv struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	bucket string
	stream jetstream.Stream
	made   atomic.Int64 // when the stream was made, by the last look
}

// subject is the subject that a key is written to. The stream publishes its stored records to stored.
func (kv *kv) subject(key string) string { return "$KV." + kv.bucket + "." + key }
func (kv *kv) stored(key string) string  { return "fencelock.stored." + kv.bucket + "." + key }

// Get implements record.KV: the last message of a key, as the stream's leader has it. Its number in
// the stream is the version.
func (kv *kv) Get(ctx context.Context, key string) (record.Value, error) {
	m, err := kv.stream.GetLastMsgForSubject(ctx, kv.subject(key))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return record.Value{}, nil
	case err != nil:
		return record.Value{}, err
	}
	return record.Value{Data: m.Data, Version: strconv.FormatUint(m.Sequence, 10), At: m.Time}, nil
}

// Put implements record.KV: a publish that the stream refuses if the key has another last message.
func (kv *kv) Put(
	ctx context.Context, key string, data []byte, was string, keep time.Duration,
) (string, error) {
	var last uint64 // no message
	if was != "" {
		var err error
		if last, err = strconv.ParseUint(was, 10, 64); err != nil {
			return "", err
		}
	}
	msg := &nats.Msg{Subject: kv.subject(key), Data: data, Header: nats.Header{}}
	ack, err := kv.js.PublishMsg(ctx, msg, jetstream.WithExpectLastSequencePerSubject(last),
		jetstream.WithMsgTTL(keep), jetstream.WithRetryAttempts(0))
	var api *jetstream.APIError
	switch {
	case err == nil:
		return strconv.FormatUint(ack.Sequence, 10), nil
	case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return "", record.ErrMoved
	}
	return "", err
}

// Now implements record.KV. A server that has lost the stream gets it again.
func (kv *kv) Now(ctx context.Context) (time.Time, error) {
	s, err := kv.open(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return s.CachedInfo().TimeStamp, nil
}

// Epoch implements record.KV. A stream that was made again counts its messages from 1.
func (kv *kv) Epoch() uint64 { return kv.nc.Stats().Reconnects + uint64(kv.made.Load()) }

// Keys implements record.KV.
func (kv *kv) Keys(ctx context.Context, space string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		info, err := kv.stream.Info(ctx, jetstream.WithSubjectFilter(kv.subject(space+"*")))
		if err != nil {
			yield("", err)
			return
		}
		for subject := range info.State.Subjects {
			if !yield(strings.TrimPrefix(subject, kv.subject("")), nil) {
				return
			}
		}
	}
}

// Watch implements record.Watcher.
func (kv *kv) Watch(key string, changed func(record.Value)) (func(), error) {
	sub, err := kv.nc.Subscribe(kv.stored(key), func(m *nats.Msg) {
		changed(record.Value{Data: m.Data, At: time.Now()})
	})
	if err != nil {
		return nil, err
	}
	return func() { _ = sub.Unsubscribe() }, nil // a connection that is closed has none
}
