package backend_test

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

func TestParseURL(t *testing.T) {
	tests := []struct {
		give                            string
		scheme, user, host, path, query string
	}{
		{"redis://localhost:6379/0", "redis", "", "localhost:6379", "/0", ""},
		{"REDIS://h", "redis", "", "h", "", ""},
		{"redis://h:1,h:65535", "redis", "", "h:1,h:65535", "", ""},
		{"memory://", "memory", "", "", "", ""},
		{"memory://?a=b", "memory", "", "", "", "a=b"},
		{"file:///var/lib/locks", "file", "", "", "/var/lib/locks", ""},
		{"etcd://h1:2379,h2:2379,h3", "etcd", "", "h1:2379,h2:2379,h3", "", ""},
		{"redis+sentinel://u:p@h1,h2/1?x=y", "redis+sentinel", "u:p", "h1,h2", "/1", "x=y"},
		{"redis://:p%40ss@h", "redis", ":p%40ss", "h", "", ""},
		{"redis://u:p@ss@h", "redis", "u:p%40ss", "h", "", ""},
		{"redis://[::1]:6379,[2001:db8::1]", "redis", "", "[::1]:6379,[2001:db8::1]", "", ""},
		{"zookeeper://z1:1,z2:2/ch/root", "zookeeper", "", "z1:1,z2:2", "/ch/root", ""},
		{"postgres://u:p@/db?mode=row", "postgres", "u:p", "", "/db", "mode=row"},
	}
	for _, tt := range tests {
		u, err := backend.ParseURL(tt.give)
		if err != nil {
			t.Errorf("%s: %v", tt.give, err)
			continue
		}
		if u.Scheme != tt.scheme || u.User.String() != tt.user || u.Host != tt.host ||
			u.Path != tt.path || u.RawQuery != tt.query {
			t.Errorf("%s: got %q %q %q %q %q", tt.give, u.Scheme, u.User.String(), u.Host, u.Path, u.RawQuery)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	for give, says := range map[string]string{
		"":                       "no scheme",
		"localhost":              "no scheme",
		"redis:/h":               "no scheme",
		"stone:h":                "such as stone://host[:port]",
		"file:locks":             "such as file:///var/lib/locks",
		"://h":                   "",
		"1redis://h":             "",
		"re dis://h":             "",
		"redis://h:port":         "hosts",
		"redis://h:1:2":          "hosts",
		"redis://h:0":            "port of the \"redis\" URL is out of range: want 1 to 65535",
		"redis://h:65536":        "1 to 65535",
		"redis://h1:1,h2:99999":  "1 to 65535",
		"redis://[::1]:70000":    "1 to 65535",
		"redis://h:000":          "1 to 65535",
		"redis://h1,,h2":         "hosts",
		"redis://h1,":            "hosts",
		"redis://,h":             "hosts",
		"redis://[::1":           "hosts",
		"redis://::1":            "hosts",
		"redis://a b":            "hosts",
		"redis://h#f":            "fragment",
		"redis://u:1/p@h":        "behind its hosts",
		"redis://u:1?prefix=p@h": "behind its hosts",
		"redis://u:p@h/a@b":      "behind its hosts",
		"redis://h#":             "fragment",
		"redis://h/%zz":          "cannot be read",
		"redis://u%zz@h":         "cannot be read",
		"redis://h\x7f":          "control character",
		"redis://h/\x00":         "control character",
		"redis://u:p@h/0\n":      "white space around it",
		" redis://h":             "white space around it",
		"file:///locks\r\n":      "white space around it",
		"user:pass@redis://h":    "",
		"redis//user:pass@h://x": "",
	} {
		u, err := backend.ParseURL(give)
		if u != nil || !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%q: got %v, %v, want ErrInvalid", give, u, err)
			continue
		}
		if !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want it to say %q", give, err, says)
		}
	}
}

func TestHosts(t *testing.T) {
	tests := map[string][]string{
		"x://":                       {"localhost:7"},
		"x://h":                      {"h:7"},
		"x://h:1":                    {"h:1"},
		"x://:1":                     {"localhost:1"},
		"x://h:":                     {"h:7"},
		"x://a,b:1,c":                {"a:7", "b:1", "c:7"},
		"x://[::1]":                  {"[::1]:7"},
		"x://[::1]:1,[2001:db8::1]":  {"[::1]:1", "[2001:db8::1]:7"},
		"x://u:p@a,b":                {"a:7", "b:7"},
		"x://10.0.0.1,10.0.0.2:9999": {"10.0.0.1:7", "10.0.0.2:9999"},
	}
	for give, want := range tests {
		u, err := backend.ParseURL(give)
		if err != nil {
			t.Errorf("%s: %v", give, err)
			continue
		}
		if got := backend.Hosts(u, "7"); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", give, got, want)
		}
	}
	if got, want := backend.Hosts(&url.URL{}, "7"), []string{"localhost:7"}; !slices.Equal(got, want) {
		t.Errorf("no host: got %q, want %q", got, want)
	}
}

func FuzzParseURL(f *testing.F) {
	for _, s := range []string{
		"redis://user:%s@localhost:6379/0", "%s", "redis://%s", "user:%s@redis://h",
		"redis//u:%s@h://x", "redis://u:%s@h:port",
		"redis://u:1?%s@h", "redis://u:1#%s@h", "redis://u:1/%s@h", "redis://u:%%zz%s@h",
		"redis://:%s@[::1", "mongodb://u:%s@h?a=b&a=c", "a://u:%s@b,c?ttl=1",
		"redis://u:1/%s@h/%%00", "redis://u:1?prefix=%s@h/%%00", "stone://u:%s@h?x=%%zz",
		"stone://u:1?%s@h", "stone://u:1?a=%s@h",
	} {
		f.Add(s)
	}
	const secret = "hunter2secret"
	f.Fuzz(func(t *testing.T, shape string) {
		// The password goes where the shape has "%s", if that is between : and @.
		before, after, ok := strings.Cut(shape, "%s")
		if !ok {
			before, after = "redis://user:", "@"+shape
		}
		if strings.Contains(after, "%s") || !strings.Contains(before, ":") || !strings.Contains(after, "@") {
			return
		}
		raw := before + secret + after
		u, err := backend.ParseURL(raw)
		if err == nil {
			_ = backend.Hosts(u, "1")
			_, err = backend.Open(t.Context(), raw, nil)
		}
		if text := fmt.Sprintf("%v %+v %#v", err, err, err); err != nil && strings.Contains(text, secret) {
			t.Errorf("%q: the error shows the password: %s", raw, text)
		}
	})
}
