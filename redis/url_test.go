package redis_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

const secret = "hunter2-s3cret"

func TestBadURLs(t *testing.T) {
	t.Parallel()
	notPEM := filepath.Join(t.TempDir(), "not.pem")
	must(t, os.WriteFile(notPEM, []byte("nothing"), 0o600))
	for _, tt := range []struct{ url, says string }{
		{"redis://:PW@127.0.0.1:1/?nosuch=1", `"nosuch"`},
		{"redis://:PW@127.0.0.1:1/?nosuch=1", "pool_size"}, // lists the known ones
		{"redis://:PW@127.0.0.1:1/x", "database"},
		{"redis://:PW@127.0.0.1:1/-1", "database"},
		{"redis://:PW@127.0.0.1:1/1/2", "database"},
		{"redis://:PW@127.0.0.1:1,127.0.0.1:2", "redis+cluster://"},
		{"rediss://:PW@127.0.0.1:1,127.0.0.1:2", "redis+sentinel://"},
		{"redis+sentinel://:PW@127.0.0.1:1", "master"},
		{"redis+sentinel://:PW@127.0.0.1:1/", "master"},
		{"redis+sentinel://:PW@127.0.0.1:1/m/x", "database"},
		{"redis+cluster://:PW@127.0.0.1:1/0", "path"},
		{"redis://:PW@127.0.0.1:1/?tls_ca=/etc/ca.pem", "rediss://"},
		{"redis://:PW@127.0.0.1:1/?tls_skip_verify=true", "rediss://"},
		{"redis+cluster://:PW@127.0.0.1:1?tls_server_name=x", "tls=true"},
		{"rediss://:PW@127.0.0.1:1/?tls_ca=/no/such/file.pem", "tls_ca"},
		{"rediss://:PW@127.0.0.1:1/?tls_ca=" + notPEM, "PEM"},
		{"rediss://:PW@127.0.0.1:1/?tls_cert=" + notPEM, "tls_key"},
		{"rediss://:PW@127.0.0.1:1/?tls_cert=" + notPEM + "&tls_key=" + notPEM, "tls_cert"},
		{"redis://:PW@127.0.0.1:1/?pool_size=many", "pool_size"},
		{"redis://:PW@127.0.0.1:1/?pool_size=-1", "pool_size"},
		{"redis://:PW@127.0.0.1:1/?dial_timeout=fast", "dial_timeout"},
		{"redis://:PW@127.0.0.1:1/?read_timeout=-1s", "read_timeout"},
		{"redis://:PW@127.0.0.1:1/?ttl=0", "ttl"},
		{"redis://:PW@127.0.0.1:1/?prefix=%00", "prefix"},
		{"redis://:PW@127.0.0.1:1/?sentinel_password=PW", "sentinel_password"},
		{"redis://:PW@127.0.0.1:1/?client_name=a&client_name=b", "client_name"},
		{"redis://:PW%zz@127.0.0.1:1/", "percent"},
		{"redis://:PW@127.0.0.1:1/#x", "fragment"},
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

func TestURLKeys(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c := foreign(t, s)
	l := open(
		t,
		"redis://"+s.Addr()+"/3?prefix=mine:&ttl=7s&client_name=lockers"+
			"&dial_timeout=1s&read_timeout=2s&pool_size=3&min_idle_conns=1",
	)
	le := lock(t, l.Mutex("x"))
	list := c.ClientList(t.Context()).Val()
	if !strings.Contains(list, "name=lockers") || !strings.Contains(list, "db=3") {
		t.Errorf("no connection is named and in database 3:\n%s", list)
	}
	if left := time.Until(le.Deadline()); left > 7*time.Second || left < 5*time.Second {
		t.Errorf("Deadline in %v, want ttl=7s", left)
	}
	if n := c.Exists(t.Context(), "mine:x").Val(); n != 0 {
		t.Error("the lock is in database 0")
	}
	unlock(t, le)
	_, err := fencelock.Open(t.Context(), "redis://"+s.Addr()+"/99999")
	want(t, "a database that is not there", err, fencelock.ErrInvalid)
	_, err = fencelock.Open(t.Context(), "redis://"+s.Addr()+"/?client_name=with+space")
	want(t, "a name that Redis refuses", err, fencelock.ErrInvalid)
}

func TestReplicaIsRefused(t *testing.T) {
	t.Parallel()
	master := servers.Redis(t, servers.RedisOptions{})
	_, port, err := net.SplitHostPort(master.Addr())
	must(t, err)
	replica := servers.Redis(t, servers.RedisOptions{Config: []string{"replicaof 127.0.0.1 " + port}})
	_, err = fencelock.Open(t.Context(), replica.URL())
	if err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("Open of a replica: got %v, want an error that names it", err)
	}
}

// What is known is said once, and only of this kind of URL.
func TestUnknownKey(t *testing.T) {
	t.Parallel()
	for scheme, sentinel := range map[string]int{"redis://127.0.0.1:1/": 0, "redis+sentinel://127.0.0.1:1/main": 1} {
		_, err := fencelock.Open(t.Context(), scheme+"?bogus=1")
		want(t, scheme, err, fencelock.ErrInvalid)
		if err != nil &&
			(strings.Count(err.Error(), "sentinel_password") != sentinel ||
				strings.Count(err.Error(), "read_timeout") != 1) {
			t.Errorf("%s: got %v, want each key of this URL once", scheme, err)
		}
	}
}

func TestClusterURLOfAPlainServer(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	_, err := fencelock.Open(t.Context(), "redis+cluster://"+s.Addr())
	want(t, "Open", err, fencelock.ErrInvalid)
	if err != nil && !strings.Contains(err.Error(), "use redis://") {
		t.Errorf("got %v, want it to say what to use", err)
	}
}

func TestUnreachableServer(t *testing.T) {
	t.Parallel()
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	refusing := gone.Addr().String()
	must(t, gone.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	const soon, patient = 400 * time.Millisecond, "?dial_timeout=30s&read_timeout=30s"
	for _, tt := range []struct {
		name, url string
		ctx, most time.Duration
	}{
		{"refuses", "redis://:PW@" + refusing, 0, 5500 * time.Millisecond},
		{"refuses, cluster", "redis+cluster://:PW@" + refusing, 0, 5500 * time.Millisecond},
		{"refuses, sentinel", "redis+sentinel://:PW@" + refusing + "/main", 0, 5500 * time.Millisecond},
		{"refuses, TLS", "rediss://:PW@" + refusing, 0, 5500 * time.Millisecond},
		{"silent", "redis://:PW@" + silent.Addr().String(), 0, 5500 * time.Millisecond},
		// By its ctx, and neither by its own 5 s nor by the client's limits.
		{"silent, ctx", "redis://:PW@" + silent.Addr().String() + patient, soon, 4 * time.Second},
		{"silent, cluster, ctx", "redis+cluster://:PW@" + silent.Addr().String() + patient, soon, 4 * time.Second},
		{
			"silent, sentinel, ctx", "redis+sentinel://:PW@" + silent.Addr().String() + "/main" + patient,
			soon, 4 * time.Second,
		},
		{"silent, TLS, ctx", "rediss://:PW@" + silent.Addr().String() + patient, soon, 4 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if testing.Short() && tt.ctx == 0 {
				t.Skip("takes up to 5 s")
			}
			t.Parallel()
			ctx, target := t.Context(), fencelock.ErrUnavailable
			if tt.ctx > 0 {
				limited, cancel := context.WithTimeout(ctx, tt.ctx)
				defer cancel()
				ctx, target = limited, context.DeadlineExceeded
			}
			began := time.Now()
			l, err := fencelock.Open(ctx, strings.ReplaceAll(tt.url, "PW", secret))
			took := time.Since(began)
			if err == nil {
				_ = l.Close()
			}
			want(t, "Open", err, target)
			t.Logf("after %v: %v", took, err)
			if took > tt.most {
				t.Errorf("Open took %v, want %v at most", took, tt.most)
			}
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error shows the password: %v", err)
			}
			if err != nil && strings.HasPrefix(tt.name, "silent") &&
				!strings.Contains(err.Error(), silent.Addr().String()) {
				t.Errorf("the error does not say who is silent: %v", err)
			}
			if err != nil && strings.Contains(tt.name, "silent, TLS") &&
				!strings.Contains(err.Error(), "may not speak TLS") {
				t.Errorf("the error does not say what may be wrong: %v", err)
			}
		})
	}
}
