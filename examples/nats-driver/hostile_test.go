package natskv_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	natskv "github.com/fencelock/fencelock/examples/nats-driver"
)

// values are what no driver writes under a lock's key.
var values = []string{
	"x", "{", "{}{}", `{"token":1}}x`, `{"token":1}]`, "null null",
	`{"holder":null,"token":0,"extra":1}`, `{"token":-1}`, `{"token":9007199254740992}`,
	`{"token":1e300}`, `{"token":"1"}`,
	`{"token":1,"holder":{"nonce":"short","owner":"","since":1,"keep":1}}`,
	`{"token":1,"holder":{"nonce":"0123456789abcdef0123456789abcdef","owner":"","since":-1,"keep":1}}`,
	`{"token":1,"holder":{"nonce":"0123456789abcdef0123456789abcdef","owner":"","since":1,"keep":-1}}`,
	`{"token":1,"holder":{"nonce":"0123456789abcdef0123456789abcdef","owner":"","since":1,"keep":9223372036854775807}}`,
	`{"token":1,"queue":[{"nonce":"","seen":0}]}`, `{"token":1,"ended":[{}]}`, "\x00\xff",
	strings.Repeat("[", 100_000), strings.Repeat("x", 900_000),
}

// What others wrote under our keys is ErrInvalid everywhere, and never a free lock.
func TestHostileValues(t *testing.T) {
	s := startNATS(t)
	ctx := t.Context()
	l, err := fencelock.Open(ctx, "nats://app:"+url.QueryEscape(secret)+"@"+s.addr+"/locks?prefix=")
	must(t, err)
	defer l.Close()
	js := s.stream(t)
	for _, v := range values {
		_, err := js.Publish(ctx, subject("", "n"), []byte(v))
		must(t, err)
		for what, do := range map[string]func() error{
			"TryLock": func() error { _, err := l.Mutex("n").TryLock(ctx); return err },
			"Lock": func() error {
				short, cancel := context.WithTimeout(ctx, 2*time.Second)
				defer cancel()
				_, err := l.Mutex("n").Lock(short)
				return err
			},
			"Inspect": func() error { _, err := l.Inspect(ctx, "n"); return err },
			"Break":   func() error { return l.Break(ctx, "n") },
			"List": func() error {
				for _, err := range l.List(ctx, "") {
					return err
				}
				return nil
			},
		} {
			if err := do(); !errors.Is(err, fencelock.ErrInvalid) {
				t.Errorf("%s over %.60q: got %v, want ErrInvalid", what, v, err)
			}
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	s := startNATS(t)
	for _, tt := range []struct{ url, says string }{
		{"nats://app:wrong-" + url.QueryEscape(secret) + "@" + s.addr, "refuses"},
		{"nats://" + s.addr, "refuses"},
		{"nats://app:" + url.QueryEscape(secret) + "@" + s.addr + "/a.b", "bucket"},
		{"nats://app:" + url.QueryEscape(secret) + "@" + s.addr + "?db=1", "unknown key"},
	} {
		_, err := fencelock.Open(t.Context(), tt.url)
		if !errors.Is(err, fencelock.ErrInvalid) || !strings.Contains(err.Error(), tt.says) ||
			strings.Contains(err.Error(), secret) {
			t.Errorf("got %v, want ErrInvalid that says %q and no password", err, tt.says)
		}
	}
}

// Every grant after Raise has a greater token, also of a client that has just looked at the floor.
func TestRaise(t *testing.T) {
	s := startNATS(t)
	open := func() *fencelock.Locker {
		nc := s.connect(t)
		d, err := natskv.New(t.Context(), nc, nil)
		must(t, err)
		l, err := fencelock.New(d)
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	other := open()
	le, err := other.Mutex("n").TryLock(t.Context())
	must(t, err)
	must(t, le.Unlock(t.Context()))
	d, err := natskv.New(t.Context(), s.connect(t), nil)
	must(t, err)
	defer d.Close()
	floor := le.Token() + backend.FloorAhead - 60_000_000 // most of the hour that a floor may be ahead
	must(t, backend.Raiser(d).Raise(t.Context(), floor))
	must(t, backend.Raiser(d).Raise(t.Context(), 1)) // never lowers
	if err := backend.Raiser(d).Raise(t.Context(), floor+2*backend.FloorAhead); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a floor hours ahead: got %v, want ErrInvalid", err)
	}
	for _, name := range []string{"n", "another"} {
		le, err := other.Mutex(name).TryLock(t.Context())
		must(t, err)
		if le.Token() <= floor {
			t.Errorf("%s: token %d after Raise(%d)", name, le.Token(), floor)
		}
	}
}
