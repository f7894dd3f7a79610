package redlock_test

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/redlock"
)

func TestURLsRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ url, says string }{
		{"redlock://a", "odd number"},
		{"redlock://a,b", "odd number"},
		{"redlock://a,b,c,d", "odd number"},
		{"redlock://a,b,a", "twice"},
		{"redlock://a,b,c/x", "database"},
		{"redlock://a,b,c?drift=0.7", "drift"},
		{"redlock://a,b,c?drift=x", "drift"},
		{"redlock://a,b,c?drift=nan", "drift"},
		{"redlock://a,b,c?quarantine=0s", "quarantine"},
		{"redlock://a,b,c?ttl=61s", "quarantine"},
		{"redlock://a,b,c?tls_ca=x", "redlocks"},
		{"redlock://a,b,c?fresh=maybe", "fresh"},
		{"redlock://a,b,c?colour=red", "colour"},
		{"redlocks://a,b,c?tls_ca=/does/not/exist", "tls_ca"},
	} {
		_, err := fencelock.Open(t.Context(), tt.url)
		want(t, tt.url, err, fencelock.ErrInvalid)
		if err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want it to name %q", tt.url, err, tt.says)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	client := func() *goredis.Client {
		c := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1"}) // New sends nothing
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	ring := goredis.NewRing(&goredis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	var none *goredis.Client
	three := []goredis.UniversalClient{client(), client(), client()}
	for _, tt := range []struct {
		what    string
		clients []goredis.UniversalClient
		opts    *redlock.Options
		bad     bool
	}{
		{"three", three, nil, false},
		{"no clients", nil, nil, true},
		{"two", three[:2], nil, true},
		{"four", append(three[:3:3], client()), nil, true},
		{"a Ring", append(three[:2:2], ring), nil, true},
		{"nil", append(three[:2:2], nil), nil, true},
		{"nil Client", append(three[:2:2], none), nil, true},
		{"both prefixes", three, &redlock.Options{Prefix: "p", NoPrefix: true}, true},
		{"a prefix with NUL", three, &redlock.Options{Prefix: "a\x00"}, true},
		{"a drift of half the TTL", three, &redlock.Options{Drift: 0.5}, true},
		{"a drift that is no number", three, &redlock.Options{Drift: math.NaN()}, true},
		{"a negative quarantine", three, &redlock.Options{Quarantine: -1}, true},
	} {
		d, err := redlock.New(tt.clients, tt.opts)
		if tt.bad {
			want(t, tt.what, err, fencelock.ErrInvalid)
			continue
		}
		must(t, err)
		must(t, d.Close())
	}
}

// A server that stands twice in a URL, under two names, would be a majority by itself.
func TestOneServerUnderTwoNames(t *testing.T) {
	t.Parallel()
	addr := start(t, 1).addrs[0]
	twice := url([]string{addr, "127.0.0.1:1", strings.Replace(addr, "127.0.0.1", "localhost", 1)}, "")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := fencelock.Open(ctx, twice)
	want(t, "Open", err, fencelock.ErrInvalid)
	if err == nil || !strings.Contains(err.Error(), "one server") {
		t.Errorf("got %v, want it to say why", err)
	}
}

// Two clients of one server are found out by the first lock, for New asks nothing. The third node does not answer.
func TestTwoClientsOfOneServer(t *testing.T) {
	t.Parallel()
	addr := start(t, 1).addrs[0]
	var clients []goredis.UniversalClient
	for _, addr := range []string{addr, "127.0.0.1:1", addr} {
		c := goredis.NewClient(&goredis.Options{Addr: addr})
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	d, err := redlock.New(clients, nil)
	must(t, err)
	l, err := fencelock.New(d)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	for range 2 {
		_, err = l.Mutex("a").TryLock(t.Context())
		want(t, "TryLock", err, fencelock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "one server") {
			t.Errorf("got %v, want it to say why", err)
		}
	}
}

// No majority answers: the error says so within the time of ctx, names the nodes, and shows no password.
func TestOpenWithoutAMajority(t *testing.T) {
	t.Parallel()
	c := start(t, 3)
	addrs := c.Addrs()
	ctx, cancel := context.WithTimeout(t.Context(), 2e9)
	defer cancel()
	_, err := fencelock.Open(ctx, "redlock://user:s3cret@127.0.0.1:1,127.0.0.1:2,"+addrs[0])
	if err == nil || strings.Contains(err.Error(), "s3cret") || !strings.Contains(err.Error(), "127.0.0.1:2") {
		t.Errorf("got %v, want an error that names the nodes and not the password", err)
	}
}
