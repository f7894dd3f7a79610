package natskv_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	natskv "github.com/fencelock/fencelock/examples/nats-driver"
)

func TestConformance(t *testing.T) {
	s := startNATS(t)
	address := func(c conformance.Client) string {
		host := s.addr
		if p, ok := c.Link.(*faultproxy.Proxy); ok {
			host = p.Addr()
		}
		return "nats://app:" + url.QueryEscape(secret) + "@" + host + "/locks?prefix=" + url.QueryEscape(c.Prefix)
	}
	conformance.Run(t, conformance.Harness{
		Name: "nats",
		Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) {
			return backend.Open(ctx, address(c), nil)
		},
		Link:   func(context.Context) (conformance.Link, error) { return faultproxy.New(s.addr) },
		Store:  bucket{s.stream(t)},
		Server: s,
		URL:    address,
		Given: func(ctx context.Context) (backend.Driver, func(context.Context) error, error) {
			nc := s.connect(t)
			d, err := natskv.New(ctx, nc, "", backend.DefaultPrefix)
			return d, func(context.Context) error {
				if nc.NumSubscriptions() > 1 { // one is nats.go's own, for replies
					return errors.New("subscriptions are left")
				}
				return nc.FlushTimeout(time.Minute)
			}, err
		},
	})
}

// bucket looks at the store without the driver.
type bucket struct{ js jetstream.JetStream }

// stored is the part of a record that the suite asks about.
type stored struct {
	Holder *struct{ Since, Keep int64 }
	Queue  []any
}

func (b bucket) get(ctx context.Context, subject string) (r stored, stamped time.Time, err error) {
	st, err := b.js.Stream(ctx, "KV_locks")
	if err != nil {
		return r, stamped, err
	}
	m, err := st.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) || err == nil && len(m.Data) == 0 {
		return r, stamped, nil
	}
	if err != nil {
		return r, stamped, err
	}
	return r, m.Time, json.Unmarshal(m.Data, &r)
}

func subject(prefix, name string) string {
	return "$KV.locks.p" + hex.EncodeToString([]byte(prefix)) + ".n" + hex.EncodeToString([]byte(name))
}

func (b bucket) Look(ctx context.Context, prefix, name string) (bool, time.Duration, error) {
	r, stamped, err := b.get(ctx, subject(prefix, name))
	if err != nil || r.Holder == nil {
		return false, 0, err
	}
	since := stamped
	if r.Holder.Since > 0 {
		since = time.UnixMicro(r.Holder.Since)
	}
	left := time.Until(since.Add(time.Duration(r.Holder.Keep) * time.Microsecond)) // the server runs on this machine
	return left > 0, left, nil
}

func (b bucket) Take(ctx context.Context, prefix, name string) error {
	kv, err := b.js.KeyValue(ctx, "locks")
	if err != nil {
		return err
	}
	return kv.Purge(ctx, subject(prefix, name)[len("$KV.locks."):])
}

// Left lists the records with a holder or a queue. Others end by themselves, a minute after their last use.
func (b bucket) Left(ctx context.Context, prefix string) ([]string, error) {
	st, err := b.js.Stream(ctx, "KV_locks")
	if err != nil {
		return nil, err
	}
	info, err := st.Info(ctx, jetstream.WithSubjectFilter("$KV.locks.p"+hex.EncodeToString([]byte(prefix))+".*"))
	if err != nil {
		return nil, err
	}
	var left []string
	for key := range info.State.Subjects {
		r, _, err := b.get(ctx, key)
		if err != nil {
			return nil, err
		}
		if r.Holder != nil || len(r.Queue) > 0 {
			left = append(left, key)
		}
	}
	return left, nil
}
