package etcd_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/servers"
)

const secret = "hunter2-s3cret"

func TestBadURLs(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	must(t, os.WriteFile(notPEM, []byte("nothing"), 0o600))
	for _, tt := range []struct{ url, says string }{
		{"etcd://u:PW@127.0.0.1:1/?nosuch=1", `"nosuch"`},
		{"etcd://u:PW@127.0.0.1:1/?nosuch=1", "dial_timeout"}, // lists the known ones
		{"etcd://u:PW@127.0.0.1:1/x", "prefix="},
		{"etcd://:PW@127.0.0.1:1", "user:password@"},
		{"etcd://u@127.0.0.1:1", "user:password@"},
		{"etcd://u:PW@127.0.0.1:1?tls_ca=/etc/ca.pem", "etcds://"},
		{"etcd://u:PW@127.0.0.1:1?tls_skip_verify=true", "etcds://"},
		{"etcds://u:PW@127.0.0.1:1?tls_ca=/no/such/file.pem", "tls_ca"},
		{"etcds://u:PW@127.0.0.1:1?tls_ca=" + notPEM, "PEM"},
		{"etcds://u:PW@127.0.0.1:1?tls_cert=" + notPEM, "tls_key"},
		{"etcds://u:PW@127.0.0.1:1?tls_cert=" + notPEM + "&tls_key=" + notPEM, "tls_cert"},
		{"etcd://u:PW@127.0.0.1:1?dial_timeout=fast", "dial_timeout"},
		{"etcd://u:PW@127.0.0.1:1?ttl=0", "ttl"},
		{"etcd://u:PW@127.0.0.1:1?prefix=%00", "prefix"},
		{"etcd://u:PW%zz@127.0.0.1:1/", "percent"},
	} {
		began := time.Now()
		l, err := fencelock.Open(t.Context(), strings.ReplaceAll(tt.url, "PW", secret))
		if err == nil {
			_ = l.Close()
		}
		want(t, tt.url, err, fencelock.ErrInvalid)
		if err == nil {
			continue
		}
		if !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %v, want it to name %s", tt.url, err, tt.says)
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the password: %v", tt.url, err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("%s: took %v: it was dialled", tt.url, took)
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	_, err := etcd.New(nil, nil)
	want(t, "no client", err, backend.ErrInvalid)
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	for _, o := range []etcd.Options{
		{Prefix: "x", NoPrefix: true}, {Prefix: "\x00"}, {Prefix: strings.Repeat("x", 513)},
	} {
		_, err := etcd.New(c, &o)
		want(t, "bad options", err, backend.ErrInvalid)
	}
}

// Opening ends in time where nobody answers, with or without a user, and where somebody accepts and stays silent.
func TestOpenUnreachable(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	for _, at := range []string{
		"127.0.0.1:1", silent.Addr().String(), "u:" + secret + "@127.0.0.1:1",
		"u:" + secret + "@" + silent.Addr().String(),
	} {
		began := time.Now()
		_, err := fencelock.Open(within(t, 700*time.Millisecond), "etcd://"+at)
		want(t, "Open of "+at, err, fencelock.ErrUnavailable)
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Open of %s with 700ms took %v", at, took)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{TLS: true})
	host := e.Addrs()[0]
	for _, tt := range []struct {
		query string
		works bool
	}{
		{"tls_ca=" + url.QueryEscape(e.CAFile()), true},
		{"tls_ca=" + url.QueryEscape(e.CAFile()) + "&tls_server_name=localhost", true},
		{"tls_skip_verify=true", true},
		{"", false}, // signed by nobody that is known here
		{"tls_ca=" + url.QueryEscape(e.CAFile()) + "&tls_server_name=elsewhere", false},
	} {
		l, err := fencelock.Open(within(t, 3*time.Second), "etcds://"+host+"?"+tt.query)
		if (err == nil) != tt.works {
			t.Errorf("%q: got %v, want it to work: %v", tt.query, err, tt.works)
		}
		if err != nil {
			want(t, tt.query, err, fencelock.ErrUnavailable)
			continue
		}
		unlock(t, lock(t, l.Mutex("x")))
		must(t, l.Close())
	}
}

// users makes a server check passwords, and returns the URL of a user with a role for the prefix app:.
func users(t *testing.T, e *servers.EtcdCluster) string {
	t.Helper()
	c := client(t, e)
	ctx := t.Context()
	for _, step := range []func() error{
		func() error { _, err := c.RoleAdd(ctx, "locks"); return err },
		func() error {
			_, err := c.RoleGrantPermission(ctx, "locks", "app:",
				clientv3.GetPrefixRangeEnd("app:"), clientv3.PermissionType(clientv3.PermReadWrite))
			return err
		},
		func() error { _, err := c.UserAdd(ctx, "root", "root"); return err },
		func() error { _, err := c.UserGrantRole(ctx, "root", "root"); return err },
		func() error { _, err := c.UserAdd(ctx, "app", secret); return err },
		func() error { _, err := c.UserGrantRole(ctx, "app", "locks"); return err },
		func() error { _, err := c.AuthEnable(ctx); return err },
	} {
		must(t, step())
	}
	return "etcd://app:" + secret + "@" + e.Addrs()[0] + "?prefix=app:"
}

func TestUsers(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	app, host, ctx := users(t, e), e.Addrs()[0], t.Context()
	l := open(t, app, fencelock.WithTTL(6*time.Second))
	le := lock(t, l.Mutex("x"))
	manual := lock(t, l.Mutex("y", fencelock.WithManualRenew()))
	wait := start(t, open(t, app).Mutex("x"))
	await(t, 5*time.Second, "a waiter", func() bool {
		info, err := l.Inspect(ctx, "x")
		return err == nil && info.Waiters == 1
	})
	must(t, le.Renew(ctx))
	must(t, manual.Renew(ctx))
	deadline := le.Deadline()
	await(t, 6*time.Second, "a renewal in the background", func() bool { return le.Deadline().After(deadline) })
	must(t, le.Err())
	unlock(t, le)
	unlock(t, wait.Granted(t, 2*time.Second))
	for _, tt := range []struct{ url, says string }{
		{"etcd://" + host + "?prefix=app:", "user"},
		{"etcd://app:wrong" + secret + "@" + host + "?prefix=app:", "refuses"},
		{"etcd://app:" + secret + "@" + host + "?prefix=other:", "rights"},
	} {
		_, err := fencelock.Open(within(t, 3*time.Second), tt.url)
		want(t, tt.says, err, fencelock.ErrInvalid)
		if err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), secret)) {
			t.Errorf("got %v, want it to name %s and no password", err, tt.says)
		}
	}
}

// A waiter gives up while its user has no rights: its entry does not stay for as long as others of the process wait.
func TestWaiterWithoutRightsLeaves(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	app, ctx := users(t, e), t.Context()
	root := clientOf(t, clientv3.Config{Endpoints: e.Addrs(), Username: "root", Password: "root"})
	r := &rig{e: e, prefix: "app:"}
	l, d := open(t, app), r.driver(t, app)
	x, y := lock(t, l.Mutex("x")), lock(t, l.Mutex("y"))
	waiter := func(name string, nonce int) *backend.Request {
		w := request(name, nonce, 30*time.Second)
		w.Wait = true
		return w
	}
	stays := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, waiter("y", 1))
		stays <- err
	}()
	leaves := waiter("x", 2)
	_, err := d.Acquire(within(t, 2*time.Second), leaves)
	want(t, "a wait", err, backend.ErrLocked)
	_, err = root.RoleRevokePermission(ctx, "locks", "app:", clientv3.GetPrefixRangeEnd("app:"))
	must(t, err)
	want(t, "Abandon without rights", d.Abandon(ctx, leaves), backend.ErrInvalid)
	_, err = root.RoleGrantPermission(ctx, "locks", "app:", clientv3.GetPrefixRangeEnd("app:"),
		clientv3.PermissionType(clientv3.PermReadWrite))
	must(t, err)
	unlock(t, x)
	unlock(t, get(t, l.Mutex("x").Lock))
	unlock(t, y)
	must(t, <-stays)
}

// The streams that a process opens together share a login. One at a time, and each anew when it was given up, they
// would never get through to a server that is busy with the checks of those before.
func TestLoginsShared(t *testing.T) {
	t.Parallel()
	const names = 64 // eight streams of watches
	e := servers.Etcd(t, servers.EtcdOptions{})
	l := open(t, users(t, e))
	began := time.Now()
	var leases []*fencelock.Lease
	var waits []*pending
	for i := range names {
		leases = append(leases, lock(t, l.Mutex(fmt.Sprint(i))))
	}
	for i := range names {
		waits = append(waits, start(t, l.Mutex(fmt.Sprint(i))))
	}
	for i := range names {
		await(t, 20*time.Second, "a waiter", func() bool {
			info, err := l.Inspect(t.Context(), fmt.Sprint(i))
			return err == nil && info.Waiters == 1
		})
	}
	logins, most := logins(t, e), 3+int(time.Since(began)/(700*time.Millisecond))
	if logins > most {
		t.Errorf("got %d logins, want %d at most", logins, most)
	}
	for i, w := range waits {
		unlock(t, leases[i])
		unlock(t, w.Granted(t, 10*time.Second))
	}
}

// logins is how many a server has counted.
func logins(t *testing.T, e *servers.EtcdCluster) (n int) {
	t.Helper()
	resp, err := http.Get("http://" + e.Addrs()[0] + "/metrics")
	must(t, err)
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), `grpc_server_started_total{grpc_method="Authenticate"`) {
			_, err := fmt.Sscan(lines.Text()[strings.LastIndexByte(lines.Text(), ' '):], &n)
			must(t, err)
		}
	}
	must(t, lines.Err())
	return n
}

// A real server that is too old is in tests/backends (make versions).
func TestVersions(t *testing.T) {
	t.Parallel()
	for version, old := range map[string]bool{
		"3.3.25": true, "3.4.30": true, "3.4.31": false, "3.4.37": false, "3.5.0": true, "3.5.12": true,
		"3.5.13": false, "3.6.0-rc.1": false, "3.7.3": false, "4.0.0": false, "": false, "kine": false,
	} {
		if err := etcd.TooOld(version); errors.Is(err, backend.ErrInvalid) != old || (err != nil) != old {
			t.Errorf("%q: got %v, too old: %v", version, err, old)
		}
	}
}
