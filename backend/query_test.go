package backend_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// keys is what take takes from a URL's query.
type keys struct {
	text   string
	number int
	flag   bool
	span   time.Duration
	has    bool
	prefix string
}

func take(q *backend.Query) keys {
	return keys{
		q.String("text", "none"), q.Int("number", 5, 1, 9), q.Bool("flag", true),
		q.Duration("span", time.Minute), q.Has("has"), q.Prefix(),
	}
}

func TestQuery(t *testing.T) {
	tests := map[string]keys{
		"": {"none", 5, true, time.Minute, false, backend.DefaultPrefix},
		"?text=a%26b&number=9&flag=0&span=1m30s&has&prefix=": {"a&b", 9, false, 90 * time.Second, true, ""},
		"?text=&number=1&flag=true&has=no&prefix=p%3A":       {"", 1, true, time.Minute, true, "p:"},
	}
	for query, want := range tests {
		var got keys
		if _, err := backend.Open(t.Context(), "lazy://"+query, func(q *backend.Query) { got = take(q) }); err != nil {
			t.Errorf("%s: %v", query, err)
		}
		if got != want {
			t.Errorf("%s: got %+v, want %+v", query, got, want)
		}
	}
}

func TestQueryRefuses(t *testing.T) {
	tests := map[string]string{ // what the message must say
		"number=0":              "from 1 to 9",
		"number=10":             "from 1 to 9",
		"number=":               "from 1 to 9",
		"number=1.5":            "whole number",
		"flag=perhaps":          "true or false",
		"flag=":                 "true or false",
		"span=0":                "positive",
		"span=-1s":              "positive",
		"span=5":                "15s",
		"span=":                 "positive",
		"text=a&text=b":         "2 times",
		"textt=a":               "known are flag, has, number, prefix, span, text",
		"Text=a":                `"Text"`,
		"number=0&flag=perhaps": "number",
		"a;b=c":                 "query",
		"text=%":                "query",
	}
	for query, says := range tests {
		_, err := backend.Open(t.Context(), "lazy://?"+query, func(q *backend.Query) { take(q) })
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v, want ErrInvalid that says %q", query, err, says)
		}
	}
}

func TestNeed(t *testing.T) {
	all := backend.Traits{
		Name: "all", Fencing: backend.Durable, FIFO: true, ClockFree: true, SurvivesNode: true,
		Transactional: true, MinTTL: time.Second,
	}
	none := backend.Traits{Name: "none", MinTTL: time.Second}
	tests := map[string]struct {
		need backend.Need
		want string // what none misses
	}{
		"nothing":       {backend.Need{}, ""},
		"tokens":        {backend.Need{Fencing: backend.Anchored}, "Fencing anchored"},
		"lasting":       {backend.Need{Fencing: backend.Durable}, "Fencing durable"},
		"FIFO":          {backend.Need{FIFO: true}, "FIFO"},
		"clock-free":    {backend.Need{ClockFree: true}, "ClockFree"},
		"a node":        {backend.Need{SurvivesNode: true}, "SurvivesNode"},
		"transactional": {backend.Need{Transactional: true}, "Transactional"},
		"a long TTL":    {backend.Need{TTL: time.Second}, ""},
		"two":           {backend.Need{FIFO: true, ClockFree: true}, "FIFO, ClockFree"},
	}
	for name, tt := range tests {
		if err := tt.need.Check(all); err != nil {
			t.Errorf("%s, of a backend that has all: %v", name, err)
		}
		if got := strings.Join(tt.need.Missing(none), ", "); got != tt.want {
			t.Errorf("%s: misses %q, want %q", name, got, tt.want)
		}
		if err := tt.need.Check(none); (err == nil) != (tt.want == "") ||
			err != nil && !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	brief := backend.Need{TTL: time.Millisecond}
	if err := brief.Check(all); !errors.Is(err, backend.ErrUnsupported) || !strings.Contains(err.Error(), "TTL 1ms") {
		t.Errorf("a TTL that is too short: got %v", err)
	}
	for f, want := range map[backend.Fencing]string{
		backend.NoFencing: "none", backend.Anchored: "anchored", backend.Durable: "durable",
		9: "fencing 9",
	} {
		if got := f.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
