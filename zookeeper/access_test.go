package zookeeper_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/zookeeper"
)

// With a user in the URL what is made is accessible to that user only, under the chroot.
func TestDigestAndChroot(t *testing.T) {
	t.Parallel()
	z := single(t)
	host := z.Addrs()[0]
	l := open(t, "zookeeper://alice:s%40cret@"+host+"/prod/locks?prefix=a")
	le := lock(t, l.Mutex("x"))
	if le.Token() <= 0 {
		t.Errorf("token: got %d", le.Token())
	}
	c := foreign(t, host)
	if _, _, err := c.Children("/prod/locks/a/locks/x"); !errors.Is(err, zk.ErrNoAuth) {
		t.Errorf("a stranger's look: got %v, want %v", err, zk.ErrNoAuth)
	}
	must(t, c.AddAuth("digest", []byte("alice:s@cret")))
	if children, _, err := c.Children("/prod/locks/a/locks/x"); err != nil || len(children) != 1 {
		t.Errorf("the user's look: got %q, %v, want the holder", children, err)
	}
	for _, at := range []string{
		"zookeeper://" + host + "/prod/locks?prefix=a",
		"zookeeper://alice:wr0ng@" + host + "/prod/locks?prefix=a",
	} {
		stranger, err := fencelock.Open(t.Context(), at)
		if err == nil {
			_, err = stranger.Mutex("x").TryLock(t.Context())
			must(t, stranger.Close())
		}
		want(t, "another user", err, fencelock.ErrInvalid)
		if err != nil && (strings.Contains(err.Error(), "wr0ng") || strings.Contains(err.Error(), "s@cret")) {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	// The same user again.
	_, err := open(t, "zookeeper://alice:s%40cret@"+host+"/prod/locks?prefix=a").Mutex("x").TryLock(t.Context())
	want(t, "the same user", err, fencelock.ErrLocked)
	unlock(t, le)
}

func TestTLS(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{TLS: true})
	ca := "tls_ca=" + url.QueryEscape(z.CAFile())
	clear := open(t, z.URL(), fencelock.WithTTL(3*time.Second))
	for _, tt := range []struct {
		query string
		works bool
	}{
		{ca, true},
		{ca + "&tls_server_name=localhost", true},
		{"tls_skip_verify=true", true},
		{"", false}, // signed by nobody that is known here
		{ca + "&tls_server_name=elsewhere", false},
	} {
		l, err := fencelock.Open(t.Context(), z.SecureURL()+"?"+tt.query, fencelock.WithTTL(3*time.Second))
		if (err == nil) != tt.works {
			t.Errorf("%q: got %v, want it to work: %v", tt.query, err, tt.works)
		}
		if err != nil {
			want(t, tt.query, err, fencelock.ErrUnavailable)
			if !strings.Contains(err.Error(), "certificate") {
				t.Errorf("%q: %v does not name the reason", tt.query, err)
			}
			continue
		}
		le := lock(t, l.Mutex("x"))
		must(t, le.Renew(t.Context()))
		_, err = clear.Mutex("x").TryLock(t.Context())
		want(t, "the same lock in the clear", err, fencelock.ErrLocked)
		unlock(t, le)
		must(t, l.Close())
	}
}

func TestBadURLs(t *testing.T) {
	t.Parallel()
	for _, at := range []string{
		"zookeeper://localhost/a/../b", "zookeeper://localhost/a//b",
		"zookeeper://localhost/zookeeper/x", "zookeeper://localhost/%01", "zookeeper://localhost/%F0%9F%94%92",
		"zookeeper://localhost?db=1", "zookeeper://:pass@localhost", "zookeeper://localhost?prefix=%00",
		"zookeeper://localhost/app?prefix=locks", "zookeeper://localhost/app?prefix=tokens",
		"zookeeper://localhost/app?prefix=done", "zookeeper://localhost/app?prefix=clients",
		"zookeeper://localhost?prefix=zookeeper",
		"zookeeper://localhost?tls_ca=/etc/ca.pem", "zookeepers://localhost?tls_ca=/no/such/file.pem",
	} {
		_, err := fencelock.Open(t.Context(), at)
		want(t, at, err, fencelock.ErrInvalid)
		if err != nil && strings.Contains(err.Error(), "pass@") {
			t.Errorf("the error shows a password: %v", err)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		servers []string
		opts    *zookeeper.Options
	}{
		{nil, nil},
		{[]string{""}, nil},
		{[]string{"::1"}, nil},
		{[]string{"h"}, &zookeeper.Options{Prefix: "a", NoPrefix: true}},
		{[]string{"h"}, &zookeeper.Options{Prefix: "\xff"}},
		{[]string{"h"}, &zookeeper.Options{Chroot: "a"}},
		{[]string{"h"}, &zookeeper.Options{Password: "secret"}},
		{[]string{"h"}, &zookeeper.Options{User: "a:b", Password: "secret"}},
		{[]string{"h"}, &zookeeper.Options{User: "a", Password: "secr\u00e9t"}},
		{[]string{"h"}, &zookeeper.Options{User: "a\xff", Password: "secret"}},
	} {
		d, err := zookeeper.New(tt.servers, tt.opts)
		want(t, strings.Join(tt.servers, ","), err, backend.ErrInvalid)
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("the error shows a password: %v", err)
		}
		if d != nil {
			t.Errorf("%q, %+v: got a driver", tt.servers, tt.opts)
		}
	}
	d, err := zookeeper.New([]string{"h", "[::1]:2181"}, &zookeeper.Options{Chroot: "/"})
	must(t, err)
	must(t, d.Close())
}

// Nobody is there: Open says so in time, and leaves nothing running.
func TestOpenWithoutServer(t *testing.T) {
	t.Parallel()
	_, err := fencelock.Open(within(t, patience), "zookeeper://127.0.0.1:1,127.0.0.1:2")
	want(t, "Open", err, fencelock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want it to say why", err)
	}
}

// What other programs put where locks are is told, and never a free lock.
func TestForeignNodes(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL())
	acl := zk.WorldACL(zk.PermAll)
	_, err := c.Create(at("x"), nil, 0, acl)
	must(t, err)
	_, err = c.Create(at("x")+"/note", nil, 0, acl)
	must(t, err)
	for _, take := range []func() (*fencelock.Lease, error){
		func() (*fencelock.Lease, error) { return l.Mutex("x").TryLock(t.Context()) },
		func() (*fencelock.Lease, error) { return l.Mutex("x").Lock(t.Context()) },
	} {
		_, err := take()
		want(t, "a strange node", err, fencelock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), at("x")+"/note") {
			t.Errorf("got %v, want it to name the node", err)
		}
	}
	info, err := l.Inspect(t.Context(), "x")
	if err != nil || !info.Held || info.Owner != "" || info.Token != 0 {
		t.Errorf("Inspect: got %+v, %v, want it held by a stranger", info, err)
	}
	must(t, l.Break(t.Context(), "x"))
	unlock(t, lock(t, l.Mutex("x")))
	_, err = c.Set(root+"/tokens", []byte("many"), -1)
	must(t, err)
	_, err = l.Mutex("x").Lock(t.Context())
	want(t, "a base that is none", err, fencelock.ErrInvalid)
}
