package natskv_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
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
				bounded, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				_, err := l.Mutex("n").Lock(bounded)
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
