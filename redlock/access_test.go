package redlock_test

import (
	"errors"
	neturl "net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// TLS and a password, on real servers, and what is said without them.
func TestTLSAndPassword(t *testing.T) {
	t.Parallel()
	const secret = "s3cret-of-redlock"
	g := servers.Redises(t, 3, servers.RedisOptions{TLS: true, Password: secret})
	var pem []byte
	for _, s := range g.Servers() {
		one, err := os.ReadFile(s.CAFile())
		must(t, err)
		pem = append(pem, one...)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	must(t, os.WriteFile(ca, pem, 0o600))
	hosts := strings.Join(g.Addrs(), ",")
	for _, tt := range []struct {
		what, url string
		want      error
	}{
		{"the wrong password", "redlocks://:" + secret + "x@" + hosts + "?tls_ca=" + neturl.QueryEscape(ca), fencelock.ErrInvalid},
		{"no authority", "redlocks://:" + secret + "@" + hosts, fencelock.ErrUnavailable},
		{"no TLS", "redlock://:" + secret + "@" + hosts, fencelock.ErrUnavailable},
		{"TLS keys without TLS", "redlock://:" + secret + "@" + hosts + "?tls_ca=" + neturl.QueryEscape(ca), fencelock.ErrInvalid},
		{"both", "redlocks://:" + secret + "@" + hosts + "?fresh=1&tls_ca=" + neturl.QueryEscape(ca), nil},
	} {
		l, err := fencelock.Open(t.Context(), tt.url)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.what, err, tt.want)
		}
		if err != nil {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: the error shows the password: %v", tt.what, err)
			}
			continue
		}
		t.Cleanup(func() { _ = l.Close() })
		le, err := l.Mutex("n").TryLock(t.Context())
		must(t, err)
		must(t, le.Unlock(t.Context()))
	}
}
