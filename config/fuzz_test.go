package config_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// mark is in every value of the environment, and in no message.
const mark = "zqxsecretqzx"

// Load never panics, whatever it reads; what it refuses is ErrInvalid and shows nothing of a variable, and what it
// accepts can be asked anything.
func FuzzLoad(f *testing.F) {
	f.Add(whole, mark)
	f.Add(
		rules("{match: \"${M}*\", scenario: consensus, backend: a}",
			"{match: \"*\", scenario: \"${S}\", backend: m}"), mark+"://u:"+mark+"@h:1:2")
	f.Add(oneBackend("{url: \"${URL}\", ttl: \"${TTL}\"}"), "redis://"+mark+":"+mark+"@h/?ttl="+mark)
	f.Add(oneBackend("{url: '${URL}'}"), "postgres://h?mode="+mark)
	f.Add(oneBackend("{url: '${URL}'}"), "memory://?ttl=1s&"+mark+"=%zz#"+mark)
	f.Add("backends: {a: &x {url: *x}, ? [b] : !t c, <<: *y}\nlocks: [{}, 1, {match: ${X}}]\n---\n", mark)
	f.Add("%YAML 1.1\n---\n\"\\u0000\": >-\n  a\n", mark)
	f.Fuzz(func(t *testing.T, text, value string) {
		if strings.Contains(strings.ToLower(text), mark) {
			return
		}
		if !strings.Contains(value, mark) {
			value += mark
		}
		c, err := config.LoadEnv(strings.NewReader(text), func(string) (string, bool) { return value, true })
		if err != nil {
			if bad, ok := errors.AsType[*config.Error](err); !ok || len(bad.Problems) == 0 ||
				!errors.Is(err, backend.ErrInvalid) {
				t.Fatalf("got %v, want an Error with its problems", err)
			}
			if strings.Contains(strings.ToLower(err.Error()), mark) {
				t.Fatalf("shows what a variable holds: %v", err)
			}
			return
		}
		for _, r := range c.Rules() {
			if e := r.Explain(); len(e.Gets) == 0 || r.Backend == nil || r.Match == "" || r.Line == 0 {
				t.Errorf("got rule %+v", r)
			}
			if name := strings.TrimSuffix(r.Match, "*"); name != "" {
				if _, err := c.RuleOf(name); err != nil {
					t.Errorf("no rule for the name %q of the rule %q: %v", name, r.Match, err)
				}
			}
		}
		for _, b := range c.Backends() {
			c.Scope(b)
		}
		if _, err := c.RuleOf("\x01no such"); err != nil && strings.Contains(err.Error(), mark) {
			t.Errorf("shows what a variable holds: %v", err)
		}
	})
}
