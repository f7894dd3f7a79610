package rights

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// FuzzOpen opens URLs of every scheme with any user, path and query: an error or a driver, never a panic, and never the
// password. The ctx has ended, so nothing is asked of a store.
func FuzzOpen(f *testing.F) {
	for _, tail := range []string{
		"", "0", "0?ttl=1s", "x?prefix=%00", "?prefix=&ttl=-1s", "16384?db=1",
		"?mode=row&pool_max_conns=1", "?mode=lease&schema=%22", "a/b?mode=no",
		"?tls_ca=/nowhere", "?tls_skip_verify=maybe", "?fresh=1", "?quarantine=1h", "?master=m",
		"?dial_timeout=1ns", "locks?session=%zz", "?pool_size=-1",
		"?sslmode=verify-full&sslrootcert=/nowhere", "?connect_timeout=99999999999", "?prefix=%ff",
		"?a=1&a=2&b", "%2F..%2F", "?options=-c%20x", "\x00", "?search_path=a,b",
	} {
		f.Add("u:", "@127.0.0.1:1/"+tail)
		f.Add(":", "@127.0.0.1:1,127.0.0.1/"+tail)
	}
	f.Add("u:%zz", "@127.0.0.1:1/")
	f.Add("u:x@y", "@[::1")
	const secret = "hunter2secret"
	ctx, cancel := context.WithCancel(f.Context())
	cancel()
	f.Fuzz(func(t *testing.T, before, after string) {
		// A password is between : and @, and what ends it for a URL is percent-encoded. Postgres
		// keys can name other hosts.
		low, err := url.QueryUnescape(strings.ToLower(before + after))
		if err != nil || !strings.Contains(before, ":") || strings.ContainsAny(before, "/?#") ||
			!strings.Contains(after, "@") || strings.Contains(low, "host") ||
			strings.Contains(low, "service") {
			return
		}
		for _, scheme := range backend.Schemes() {
			at := scheme + "://" + before + secret + after
			if scheme == "file" { // any other path would be made
				_, query, _ := strings.Cut(after, "?")
				at = "file://" + t.TempDir() + "?" + query
			}
			d, err := backend.Open(ctx, at, nil)
			if err == nil {
				if err := d.Close(); err != nil {
					t.Errorf("%q: Close: %v", at, err)
				}
				continue
			}
			if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, secret) {
				t.Errorf("%q: the error shows the password: %s", at, text)
			}
			if errors.Is(err, backend.ErrLocked) || errors.Is(err, backend.ErrLost) {
				t.Errorf("%q: got %v", at, err)
			}
		}
	})
}
