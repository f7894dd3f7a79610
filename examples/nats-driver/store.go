package natskv

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
)

// errMoved: the record is not the one that was read any more.
var errMoved = errors.New("another client has changed the record")

// version is a record and the revision that it has in the bucket; 0: there is none.
type version struct {
	record
	revision uint64
}

// The keys. Hex keeps every name apart from every other, whatever is in it.
func (d *Driver) space() string { return "p" + hex.EncodeToString([]byte(d.prefix)) + "." }

func (d *Driver) key(name string) string { return d.space() + "n" + hex.EncodeToString([]byte(name)) }
func (d *Driver) source() string         { return d.space() + "source" }

// subject is where a key is written; pushed is where the stream publishes what it has stored there.
func (d *Driver) subject(key string) string { return "$KV." + d.bucket + "." + key }
func (d *Driver) pushed(key string) string  { return "fencelock.stored." + d.bucket + "." + key }

// read returns a name's record as the stream's leader has it.
func (d *Driver) read(ctx context.Context, name string) (version, error) {
	m, err := d.last(ctx, d.key(name))
	if err != nil || m == nil {
		return version{}, err
	}
	rec, err := decode(m.Data, m.Time)
	if err != nil {
		return version{}, fmt.Errorf("%w: key %s of bucket %s, under which the lock %q is kept, was not written by this driver; delete the key if nobody needs it", err, m.Subject, d.bucket, name)
	}
	return version{rec, m.Sequence}, nil
}

// last returns the last message of a key; nil if there is none.
func (d *Driver) last(ctx context.Context, key string) (*jetstream.RawStreamMsg, error) {
	m, err := d.stream.GetLastMsgForSubject(ctx, d.subject(key))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	return m, err
}

// write writes v if the bucket still has the revision that v was read at: errMoved if not.
func (d *Driver) write(ctx context.Context, name string, v version, c clock) error {
	now := c.now()
	data, err := json.Marshal(v.record)
	if err != nil {
		return err
	}
	d.known.forget(name)
	revision, err := d.publish(ctx, d.key(name), data, v.revision, jetstream.WithMsgTTL(v.life(now)))
	if err == nil {
		d.known.put(name, version{v.record, revision}, now)
	}
	return err
}

// publish stores a value if the last message of the key has this revision.
func (d *Driver) publish(ctx context.Context, key string, data []byte, revision uint64, opts ...jetstream.PublishOpt) (uint64, error) {
	opts = append(opts, jetstream.WithExpectLastSequencePerSubject(revision), jetstream.WithRetryAttempts(0))
	ack, err := d.js.PublishMsg(ctx, &nats.Msg{Subject: d.subject(key), Data: data, Header: nats.Header{}}, opts...)
	var api *jetstream.APIError
	switch {
	case err == nil:
		return ack.Sequence, nil
	case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
		return 0, errMoved
	}
	return 0, err
}

// A clock is the server's clock as far as this client knows it, and the floor of the tokens, as of the same moment.
type clock struct {
	server time.Time
	at     backend.Instant // after server came, so that now is never ahead of the server
	floor  backend.Token
	epoch  int // the connection that it came through
}

// clockLife is how long a clock is used: what Raise waits for, and what a change of the server's clock takes to be noticed.
const clockLife = 5 * time.Second

// now is the server's time in µs since 1970, and not ahead of it.
func (c clock) now() int64 { return c.server.Add(c.at.Elapsed()).UnixMicro() }

// calibrated returns a clock that is at most clockLife old and came through the present connection: that of a server
// which has lost its data, or has them back from an older copy, is a new one.
func (d *Driver) calibrated(ctx context.Context) (clock, error) {
	epoch := d.link.epoch()
	d.mu.Lock()
	c := d.clock
	d.mu.Unlock()
	if !c.at.IsZero() && c.epoch == epoch && c.at.Elapsed() < clockLife {
		return c, nil
	}
	before := backend.Now() // the floor is at least as new as this
	m, err := d.last(ctx, d.source())
	if err != nil {
		return clock{}, err
	}
	floor, err := d.floor(m)
	if err != nil {
		return clock{}, err
	}
	info, err := d.stream.Info(ctx)
	if err != nil {
		return clock{}, err
	}
	after := backend.Now()
	c = clock{server: info.TimeStamp, at: after, floor: floor, epoch: epoch}
	d.mu.Lock()
	defer d.mu.Unlock()
	if after.Sub(before) < callLimit { // a slow answer is used once
		d.clock = c
	}
	return c, nil
}

func (d *Driver) floor(m *jetstream.RawStreamMsg) (backend.Token, error) {
	if m == nil || len(m.Data) == 0 {
		return 0, nil
	}
	floor, err := strconv.ParseInt(string(m.Data), 10, 64)
	if err != nil || floor < 0 || floor >= 1<<53 {
		return 0, backend.Invalid("key %s of bucket %s is not a floor of tokens, and was not written by this driver", m.Subject, d.bucket)
	}
	return floor, nil
}

// Raise implements backend.Raiser. It takes 8 s: until no client uses a floor that it knew before.
func (d *Driver) Raise(ctx context.Context, floor backend.Token) error {
	err := d.twice(ctx, func(ctx context.Context) error {
		for {
			m, err := d.last(ctx, d.source())
			if err != nil {
				return err
			}
			was, err := d.floor(m)
			if err != nil || was >= floor {
				return err
			}
			var revision uint64
			if m != nil {
				revision = m.Sequence
			}
			if _, err = d.publish(ctx, d.source(), strconv.AppendInt(nil, floor, 10), revision); !errors.Is(err, errMoved) {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.clock = clock{}
	d.mu.Unlock()
	select {
	case <-time.After(clockLife + 3*callLimit):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// known are the records that this driver wrote last and that nobody else is likely to have changed: what it holds itself,
// and what is free, with nobody waiting. It saves a read; that it is wrong shows in the write.
type known struct {
	mu       sync.Mutex
	versions map[string]version
}

// mostKnown bounds the memory; past it everything is forgotten.
const mostKnown = 4096

func (k *known) get(name string) (version, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.versions[name]
	v.record = v.clone()
	return v, ok
}

func (k *known) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.versions, name)
}

// put keeps v, which was written no earlier than now.
func (k *known) put(name string, v version, now int64) {
	if len(v.Queue) > 0 || v.Holder != nil && v.Holder.Since != 0 {
		return
	}
	v.record = v.clone()
	if v.Holder != nil {
		v.Holder.Since = now
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.versions == nil || len(k.versions) >= mostKnown {
		k.versions = map[string]version{}
	}
	k.versions[name] = v
}
