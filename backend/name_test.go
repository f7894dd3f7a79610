package backend_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/fencelock/fencelock/backend"
)

func TestCheckName(t *testing.T) {
	good := []string{
		"a", "A", "a/b", "..", ".", "/", " ", "{}", "%", "%00", "\n", "\u0001", "é", "e\u0301",
		"\u2028", "🔒", strings.Repeat("x", 512), strings.Repeat("é", 256),
	}
	for _, name := range good {
		if err := backend.CheckName(name); err != nil {
			t.Errorf("%q: got %v, want nil", name, err)
		}
	}
	bad := map[string]string{ // what the message must say
		"":                       "1 to 512 bytes",
		"\x00":                   "NUL",
		"a\x00":                  "NUL",
		"\xff":                   "UTF-8",
		"a\xc3":                  "UTF-8",
		"\xed\xa0\x80":           "UTF-8", // a surrogate
		"\xc0\x80":               "UTF-8", // an overlong NUL
		strings.Repeat("x", 513): "513 bytes",
		strings.Repeat("é", 257): "514 bytes",
	}
	for name, says := range bad {
		err := backend.CheckName(name)
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), says) ||
			!strings.Contains(err.Error(), "name") {
			t.Errorf("%q: got %v, want ErrInvalid that says %q", name, err, says)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("the message about a name of %d bytes has %d", len(name), len(err.Error()))
		}
	}
}

func TestCheckOwnerAndPrefix(t *testing.T) {
	checks := map[string]func(string) error{"owner": backend.CheckOwner, "prefix": backend.CheckPrefix}
	for what, check := range checks {
		for _, s := range []string{"", "a", strings.Repeat("x", 512)} {
			if err := check(s); err != nil {
				t.Errorf("%s %q: got %v, want nil", what, s, err)
			}
		}
		for _, s := range []string{"\x00", "\xff", strings.Repeat("x", 513)} {
			if err := check(s); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s %q: got %v, want ErrInvalid that says %s", what, s, err, what)
			}
		}
	}
}

func FuzzCheckName(f *testing.F) {
	for _, s := range []string{
		"", "a", "a/b", "\x00", "\xff", "é", strings.Repeat("x", 513), strings.Repeat("🔒", 128),
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		want := len(name) >= 1 && len(name) <= 512 && utf8.ValidString(name) && !strings.Contains(name, "\x00")
		err := backend.CheckName(name)
		if got := err == nil; got != want {
			t.Errorf("%q: got %v, want valid: %v", name, err, want)
		}
		if err != nil &&
			(!errors.Is(err, backend.ErrInvalid) || !utf8.ValidString(err.Error()) ||
				strings.ContainsAny(err.Error(), "\x00\n")) {
			t.Errorf("%q: got the error %q, want ErrInvalid on one line of text", name, err)
		}
	})
}
