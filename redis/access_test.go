package redis_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// asUser is the server's URL for an ACL user.
func asUser(s *servers.Server, user, password string) string {
	return "redis://" + user + ":" + url.QueryEscape(password) + "@" + s.Addr() + "/0"
}

func TestTLS(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-of-tls"
	s := servers.Redis(t, servers.RedisOptions{TLS: true, Password: secret})
	opener := func(query string) (*fencelock.Locker, error) {
		l, err := fencelock.Open(within(t, 10*time.Second), s.URL()+"?"+query)
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
		return l, err
	}
	l, err := opener("tls_ca=" + url.QueryEscape(s.CAFile()))
	must(t, err)
	o, err := opener("tls_skip_verify=true")
	must(t, err)
	le := lock(t, l.Mutex("x"))
	wait := start(t, o.Mutex("x"))
	waiters(t, l, "x", 1)
	unlock(t, le)
	unlock(t, wait.Granted(t, time.Second))

	for _, tt := range []struct{ name, query string }{
		{"no authority", ""},
		{"another name", "tls_server_name=elsewhere.example&tls_ca=" + url.QueryEscape(s.CAFile())},
	} {
		began := time.Now()
		_, err := opener(tt.query)
		want(t, tt.name, err, fencelock.ErrUnavailable)
		t.Logf("%s: after %v: %v", tt.name, time.Since(began), err)
		if err != nil && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: got %v, want an error about the certificate", tt.name, err)
		}
	}
	// Plain text to a port that speaks TLS.
	_, err = fencelock.Open(within(t, 8*time.Second), "redis://"+s.Addr())
	want(t, "no TLS", err, fencelock.ErrUnavailable)
}

func TestPassword(t *testing.T) {
	t.Parallel()
	const secret = "correct:horse/battery@staple"
	s := servers.Redis(t, servers.RedisOptions{Password: secret, Users: []string{"app on >app-s3cret ~* &* +@all"}})
	open(t, s.URL())
	open(t, asUser(s, "app", "app-s3cret"))
	for _, tt := range []struct{ name, url, secret string }{
		{"none", "redis://" + s.Addr(), secret},
		{"wrong password", asUser(s, "", "wr0ng-s3cret"), "wr0ng-s3cret"},
		{"wrong user", asUser(s, "nobody", "app-s3cret"), "app-s3cret"},
		{"wrong password of a user", asUser(s, "app", "wr0ng-s3cret"), "wr0ng-s3cret"},
	} {
		_, err := fencelock.Open(t.Context(), tt.url)
		want(t, tt.name, err, fencelock.ErrInvalid)
		t.Logf("%s: %v", tt.name, err)
		if err != nil && (strings.Contains(err.Error(), tt.secret) || strings.Contains(err.Error(), secret)) {
			t.Errorf("%s: the error shows the password: %v", tt.name, err)
		}
	}
}

// rights are those that the package documentation names, for the default prefix.
const rights = "~fencelock:* ~fl* resetchannels &fl* -@all +eval +evalsha +get +set +del +exists +pexpire +pttl +time" +
	" +zadd +zrem +zrange +zscore +hset +hget +hdel +hvals +scan +publish +subscribe +mget +hgetall +info"

func TestRights(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Users: []string{
		"documented on >p " + rights,
		"deafmute on >p ~* resetchannels +@all",
		"reader on >p ~* &* +@all -@scripting",
		"elsewhere on >p ~other:* ~fl* &* +@all",
	}})
	c := foreign(t, s)

	// All that a program does, with what the documentation asks for and no more.
	a, b := open(
		t,
		asUser(s, "documented", "p"),
		fencelock.WithTTL(2*time.Second),
	), open(
		t,
		asUser(s, "documented", "p"),
	)
	le := lock(t, a.Mutex("x"))
	wait := queue(t, c, b, "x", 1)
	span := 4 * time.Second // longer than go-redis leaves a subscription without a sign of life
	if testing.Short() {
		span = 1200 * time.Millisecond
	}
	<-time.After(span)
	must(t, le.Err())
	must(t, le.Renew(t.Context()))
	for info, err := range a.List(t.Context(), "") {
		if err != nil || info.Name != "x" || info.Waiters != 1 {
			t.Errorf("List: got %+v, %v", info, err)
		}
	}
	unlock(t, le)
	next := wait.Granted(t, time.Second)
	must(t, a.Break(t.Context(), "x"))
	lost(t, next, time.Second, fencelock.Revoked)
	unlock(t, lock(t, a.Mutex("x")))
	awaitTombstones(t, c, time.Second)

	// A right that is missing is named, at the latest when it is needed.
	for _, tt := range []struct{ user, says string }{
		{"deafmute", "channels"}, {"reader", "commands"}, {"elsewhere", "keys"},
	} {
		l, err := fencelock.Open(t.Context(), asUser(s, tt.user, "p"))
		if err == nil {
			t.Cleanup(func() { _ = l.Close() })
			_, err = l.Mutex("y").Lock(within(t, 3*time.Second))
		}
		want(t, tt.user, err, fencelock.ErrInvalid)
		t.Logf("%s: %v", tt.user, err)
		if err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want it to say which %s", tt.user, err, tt.says)
		}
	}
	if n := c.Exists(t.Context(), key("y")).Val(); n != 0 {
		t.Error("a user without rights has taken the lock")
	}
}

// A right that is taken away while a program waits ends its wait, and does not look like a lock
// that is held.
func TestRightsTakenAway(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{Users: []string{"u on >p ~* &* +@all"}})
	c := foreign(t, s)
	l := open(t, asUser(s, "u", "p"))
	must(t, c.Do(t.Context(), "ACL", "SETUSER", "u", "resetchannels", "resetkeys").Err())
	_, err := l.Mutex("x").Lock(within(t, 3*time.Second))
	want(t, "Lock", err, fencelock.ErrInvalid)
	_, err = l.Inspect(t.Context(), "x")
	want(t, "Inspect", err, fencelock.ErrInvalid)
	var sent goredis.Error
	if !errors.As(err, &sent) || !strings.HasPrefix(sent.Error(), "NOPERM") {
		t.Errorf("got %v, want the server's error within", err)
	}
}
