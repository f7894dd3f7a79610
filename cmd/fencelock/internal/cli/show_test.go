package cli

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	_ "github.com/fencelock/fencelock/backend/all"
)

func TestLinesThatSayTheSame(t *testing.T) {
	got := once("cannot:\n\ta: refused\n\ta: refused\n\tb: refused")
	if want := "cannot:\n\ta: refused\n\tb: refused"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFolded(t *testing.T) {
	words := strings.Repeat("word ", 17)
	got := Folded(words, 79)
	if len(got) != 2 || strings.Join(got, " ")+" " != words {
		t.Errorf("got %q", got)
	}
}

// A URL that was typed as a name is shown without its password; other names as they are.
func TestNameHasNoSecret(t *testing.T) {
	for name, want := range map[string]string{
		"redis://u:s3cret@h:6379/0":  "redis://…@h:6379/0",
		"redis:/u:s3cret@h:6379/0":   "redis://…@h:6379/0",
		"user@example.com":           "user@example.com",
		"s3://bucket/user@1/orders":  "s3://bucket/user@1/orders",
		"s3:/bucket/user@1/orders":   "s3:/bucket/user@1/orders",
		"https://example.com/a page": "https://example.com/a page",
		"mail:\"a\"@example.com":     `"mail:\"a\"@example.com"`,
	} {
		if got := Name(name); got != want {
			t.Errorf("%q: got %s, want %s", name, got, want)
		}
	}
}

func TestWhereHasNoSecret(t *testing.T) {
	for raw, want := range map[string]string{
		"redis://user:s3cret@10.0.0.5:6379/0?ttl=5s":  "redis://10.0.0.5:6379/0",
		"etcd://root:s3cret@e1:2379,e2:2379?prefix=a": "etcd://e1:2379,e2:2379",
		"file:///var/lib/locks":                       "file:///var/lib/locks",
		"redis://user:s3/cret@h:6379":                 "", // refused elsewhere, and not shown
	} {
		a := &App{Lookup: func(string) (string, bool) { return raw, true }}
		a.Flags(&cobra.Command{})
		if got := a.Where(); got != want {
			t.Errorf("%s: got %q, want %q", raw, got, want)
		}
	}
}
