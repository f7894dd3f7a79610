package config_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// whole is a file with one of everything.
const whole = `
backends:
  cache:  {url: "redis://:${PASSWORD}@10.0.0.5:6379/0"}
  safe:   {url: "etcd://e1:2379,e2:2379,e3:2379", ttl: 15s}
  bank:   {url: "postgres://db/app?mode=row&ttl=5s"}
  rows:   {url: "postgres://db/app?mode=lease"}
  moving: {migrate: {from: cache, to: safe, phase: both}}
locks:                       # first match wins
  - {match: "inventory/pinned", scenario: inventory, backend: cache}
  - {match: "dedup/*",     scenario: deduplication, backend: cache}
  - {match: "inventory/*", scenario: inventory,     backend: moving}
  - {match: "ledger/*",    scenario: transactional, backend: bank}
  - {match: "leader",      scenario: consensus,     backend: safe}
  - {match: "*",           scenario: general,       backend: rows}
`

// env is an environment.
func env(vars map[string]string) func(string) (string, bool) {
	return func(k string) (string, bool) { v, ok := vars[k]; return v, ok }
}

// load loads text with PASSWORD in the environment.
func load(text string) (*config.Config, error) {
	return config.LoadEnv(strings.NewReader(text), env(map[string]string{"PASSWORD": secret}))
}

const secret = "s3cr3t"

func mustLoad(t *testing.T, text string) *config.Config {
	t.Helper()
	c, err := load(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLoad(t *testing.T) {
	c := mustLoad(t, whole)
	if ws := c.Warnings(); len(ws) != 0 {
		t.Errorf("got warnings %v, want none", ws)
	}
	tests := map[string]struct {
		backend, scenario, traits string
		ttl                       time.Duration
	}{
		"inventory/pinned":  {"cache", "inventory", "redis", 0},
		"inventory/pinned2": {"moving", "inventory", "redis+etcd", 30 * time.Second},
		"inventory/":        {"moving", "inventory", "redis+etcd", 30 * time.Second},
		"dedup/a/b":         {"cache", "deduplication", "redis", 0},
		"ledger/1":          {"bank", "transactional", "postgres-row", 5 * time.Second},
		"leader":            {"safe", "consensus", "etcd", 15 * time.Second},
		"leaders":           {"rows", "general", "postgres-lease", 0},
		"*":                 {"rows", "general", "postgres-lease", 0},
	}
	for name, want := range tests {
		r, err := c.RuleOf(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if r.Backend.Name != want.backend || r.Scenario.Name != want.scenario ||
			r.Backend.Traits.Name != want.traits || r.Backend.TTL != want.ttl || !r.Backend.Known {
			t.Errorf("%s: got %s on %s (%s) with ttl %v, want %+v",
				name, r.Scenario.Name, r.Backend.Name, r.Backend.Traits.Name, r.Backend.TTL, want)
		}
	}
	if r := c.Rules()[2]; r.Line != 11 || r.Column != 5 || r.Match != "inventory/*" {
		t.Errorf("got rule %+v, want the one of line 11", r)
	}
	for i, want := range []string{
		"redis://:" + secret + "@10.0.0.5:6379/0", "etcd://e1:2379,e2:2379,e3:2379?ttl=15s",
		"postgres://db/app?mode=row&ttl=5s", "postgres://db/app?mode=lease", "",
	} {
		if got := c.Backends()[i].URL(); got != want {
			t.Errorf("got URL %s, want %s", got, want)
		}
	}
	if got := fmt.Sprintf("%v %+v %#v %+v", c, c, c, *c.Backends()[0]); strings.Contains(got, secret) {
		t.Errorf("printing a Config shows the password: %s", got)
	}
}

// A migration promises what the store does that its phase locks in, and in both the lesser of each promise.
func TestTraitsOfAMigration(t *testing.T) {
	tests := map[string]struct {
		traits   string
		strong   bool // clock-free and durable
		ttl, min time.Duration
	}{
		"from": {"redis", false, time.Second, 100 * time.Millisecond},
		"both": {"redis+etcd", false, 30 * time.Second, time.Second},
		"to":   {"etcd", true, 0, time.Second},
	}
	for phase, want := range tests {
		c := mustLoad(t,
			strings.NewReplacer("phase: both", "phase: "+phase, `6379/0"}`, `6379/0", ttl: 1s}`,
				", ttl: 15s", "").Replace(whole))
		b := c.Backends()[4]
		if got := b.Traits; got.Name != want.traits || got.ClockFree != want.strong ||
			got.MinTTL != want.min || got.Transactional {
			t.Errorf("phase %s: got %+v, want %+v", phase, got, want)
		}
		if b.TTL != want.ttl {
			t.Errorf("phase %s: got TTL %v, want %v", phase, b.TTL, want.ttl)
		}
	}
}

func TestScope(t *testing.T) {
	c := mustLoad(t, whole)
	if got, want := c.Scope(c.Backends()[4]).String(), "!inventory/pinned, inventory/*"; got != want {
		t.Errorf("got scope %q, want %q", got, want)
	}
	c = mustLoad(t,
		strings.Replace(whole, `match: "*",           scenario: general,       backend: rows`,
			`match: "*", scenario: general, backend: moving`, 1))
	if got, want := c.Scope(c.Backends()[4]).String(), "!inventory/pinned, !dedup/*, "+
		"inventory/*, !ledger/*, !leader, *"; got != want {
		t.Errorf("got scope %q, want %q", got, want)
	}
	for name, moves := range map[string]bool{
		"inventory/pinned": false, "inventory/1": true, "dedup/1": false, "other": true,
	} {
		if got := c.Scope(c.Backends()[4]).Moves(name); got != moves {
			t.Errorf("%s moves: got %v, want %v", name, got, moves)
		}
	}
}

func TestWarnings(t *testing.T) {
	c := mustLoad(t,
		"backends:\n  a: {url: \"memory://\"}\n  spare: {url: \"memory://\"}\nlocks:\n  - "+
			"{match: x, scenario: general, backend: a}\n")
	ws := c.Warnings()
	if len(ws) != 1 || ws[0].Line != 3 || ws[0].Column != 3 || !strings.Contains(ws[0].What, `"spare"`) {
		t.Errorf("got %v, want one about spare at 3:3", ws)
	}
}

// A phase to come in which a rule would not load is told of before it comes.
func TestWarnsOfPhasesToCome(t *testing.T) {
	file := func(phase, scenario string) string {
		return "backends:\n  a: {url: \"etcd://h\"}\n  b: {url: \"redis://h\"}\n  m: {migrate: " +
			"{from: a, to: b, phase: " + phase + "}}\nlocks:\n" +
			"  - {match: x, scenario: " + scenario + ", backend: m}\n"
	}
	ws := mustLoad(t, file("from", "consensus")).Warnings()
	if len(ws) != 1 || ws[0].Line != 6 || !strings.Contains(ws[0].What, "phase both") ||
		!strings.Contains(ws[0].What, "ClockFree") {
		t.Errorf("from etcd to redis with consensus: got %v, want a warning about phase both", ws)
	}
	if ws := mustLoad(t, file("from", "inventory")).Warnings(); len(ws) != 0 {
		t.Errorf("with inventory: got %v, want none", ws)
	}
	if _, err := load(file("both", "consensus")); err == nil {
		t.Error("phase both loads")
	}
	short := func(phase string) string {
		file := inPhase(phase, "{match: x, scenario: inventory, backend: m}")
		return strings.Replace(file, "m: {", "m: {ttl: 500ms, ", 1)
	}
	ws = mustLoad(t, short("from")).Warnings()
	if len(ws) == 0 || !strings.Contains(ws[0].What, "in phase both a ttl of 500ms would be too short") {
		t.Errorf("with a short TTL: got %v, want a warning about phase both", ws)
	}
	if _, err := load(short("both")); err == nil {
		t.Error("a short TTL loads in phase both")
	}
}

// rules is a file with these rules over a redis called a, an etcd called e and a migration m between them.
func rules(lines ...string) string {
	return "backends:\n  a: {url: \"redis://h\"}\n  e: {url: \"etcd://h\"}\n  m: {migrate: " +
		"{from: a, to: e, phase: both}}\nlocks:\n  - " + strings.Join(lines, "\n  - ") + "\n"
}

// inPhase is a file as rules has it, with the migration in this phase.
func inPhase(phase, rule string) string {
	return strings.Replace(rules(rule), "phase: both", "phase: "+phase, 1)
}

// oneBackend is a file with this backend, called b, in line 2.
func oneBackend(text string) string {
	return "backends:\n  b: " + text + "\nlocks:\n  - {match: \"*\", scenario: deduplication, backend: b}\n"
}

// A URL without quotes, which YAML splits at the commas of its password.
func TestPiecesOfAPassword(t *testing.T) {
	for name, text := range map[string]string{
		"a url":               oneBackend("{url: redis://app:first,Second,Third@10.0.0.5:6379/0}"),
		"a piece twice":       oneBackend("{url: redis://app:first,Second,Second,Third@10.0.0.5:6379/0}"),
		"a url and a ttl":     oneBackend("{url: redis://app:first,Second,Third@10.0.0.5:6379/0, ttl: 5s}"),
		"in place of a field": oneBackend("{redis://app:first,Second,Third@10.0.0.5:6379/0}"),
		"in place of a backend": "backends: {a: redis://app:first,Second,Third@10.0.0.5:6379/0}\n" +
			"locks: [{match: x, scenario: general, backend: none}]\n",
		"in a rule": rules("{match: x, scenario: general, backend: redis://app:first,Second,Third@h/0}"),
	} {
		_, err := load(text)
		if err == nil || !strings.Contains(err.Error(), "of a URL without quotes?") {
			t.Errorf("%s: got %v, want it to name the URL", name, err)
		}
		for _, piece := range []string{"first", "Second", "Third"} {
			if err != nil && strings.Contains(err.Error(), piece) {
				t.Errorf("%s: got %v, want no %q in it", name, err, piece)
			}
		}
	}
}

func TestLoadRefuses(t *testing.T) {
	const rule = "{match: \"*\", scenario: deduplication, backend: a}"
	tests := map[string]struct {
		text, at string
		says     []string
	}{
		"empty":           {"", "1:1", []string{"empty"}},
		"a comment only":  {"# nothing\n", "1:1", []string{"empty"}},
		"a list":          {"- a\n", "1:1", []string{"mapping"}},
		"a syntax error":  {"backends:\n  a: {url: x: y}\n", "2:13", []string{"not YAML"}},
		"a tab":           {"backends:\n\ta: 1\n", "2:1", []string{"not YAML"}},
		"no bracket":      {"backends: [1, 2\nlocks: 3\n", "2:6", []string{"not YAML", "expected ',' or ']'"}},
		"an unquoted ${}": {oneBackend("{url: ${PASSWORD}}"), "2:13", []string{"not YAML", "must stand in quotes"}},
		"bad UTF-8":       {"backends:\n  a: \xff\n", "2:6", []string{"not UTF-8"}},
		"no backends":     {"locks: [" + rule + "]\n", "1:1", []string{"backends is missing"}},
		"no locks":        {"backends: {a: {url: \"memory://\"}}\n", "1:1", []string{"locks is missing"}},
		"no rules": {
			"backends: {a: {url: \"memory://\"}}\nlocks: []\n", "2:8",
			[]string{"at least one entry"},
		},
		"backends of nothing": {"backends: {}\nlocks: [" + rule + "]\n", "1:11", []string{"at least one"}},
		"an unknown key": {
			"backend: {}\nlocks: [" + rule + "]\n", "1:1",
			[]string{`unknown key "backend"`, "known are backends, locks"},
		},
		"a key twice":         {rules(rule) + "backends: {}\n", "7:1", []string{`"backends" stands twice`}},
		"two documents":       {rules(rule) + "---\nlocks: []\n", "7:1", []string{"second document"}},
		"a second that fails": {rules(rule) + "---\n{\n", "9:1", []string{"not YAML"}},
		"an anchor": {
			"backends: &x {a: {url: \"memory://\"}}\nlocks: [" + rule + "]\n", "1:11",
			[]string{"anchors"},
		},
		"an unknown alias": {"backends: *x\n", "1:11", []string{"anchors and aliases are not taken"}},
		"a merge": {
			"backends: {a: {<<: {url: \"memory://\"}}}\nlocks: [" + rule + "]\n", "1:16",
			[]string{"unknown key"},
		},
		"a tag": {
			"backends: !x {a: {url: \"memory://\"}}\nlocks: [" + rule + "]\n", "1:11",
			[]string{"tags"},
		},
		"a list for a key": {"? [a]\n: 1\n", "1:3", []string{"a word"}},

		"a backend's name": {
			"backends:\n  a b: {url: \"memory://\"}\nlocks: [" + rule + "]\n", "2:3",
			[]string{`"a b"`, "letters"},
		},
		"neither": {oneBackend("{ttl: 1s}"), "2:3", []string{"no url", "migrate"}},
		"both": {
			oneBackend("{url: \"memory://\", migrate: {from: b, to: b, phase: to}}"), "2:3",
			[]string{"one of them"},
		},
		"an unknown field": {
			oneBackend("{uri: \"memory://\"}"), "2:7",
			[]string{`unknown key "uri"`, "known are url, ttl, migrate"},
		},
		"an empty url": {oneBackend("{url: }"), "2:12", []string{"url is empty"}},
		"no scheme":    {oneBackend("{url: localhost}"), "2:12", []string{"no scheme", "redis://localhost"}},
		"an unknown scheme": {
			oneBackend("{url: \"mongodb://h\"}"), "2:12",
			[]string{"no backend of its scheme", "redis+cluster"},
		},
		"an unknown mode": {
			oneBackend("{url: \"postgres://h?mode=rows\"}"), "2:12",
			[]string{"mode=", "row or advisory or lease"},
		},
		"an empty mode": {
			oneBackend("{url: \"postgres://h?mode=\"}"), "2:12", []string{"row or advisory or lease"},
		},
		"a bad query":        {oneBackend("{url: \"redis://h?a=%zz\"}"), "2:12", []string{"query"}},
		"two TTLs":           {oneBackend("{url: \"redis://h?ttl=1s\", ttl: 2s}"), "2:12", []string{"twice"}},
		"a bad ttl of a URL": {oneBackend("{url: \"redis://h?ttl=soon\"}"), "2:12", []string{"15s"}},
		"a number as ttl":    {oneBackend("{url: \"redis://h\", ttl: 15}"), "2:30", []string{`"15"`, "15s"}},
		"a negative ttl":     {oneBackend("{url: \"redis://h\", ttl: -1s}"), "2:30", []string{"15s"}},
		"a short ttl": {
			oneBackend("{url: \"etcd://h\", ttl: 500ms}"), "2:12",
			[]string{"500ms", "etcd", "at least 1s"},
		},
		"a long ttl=":       {oneBackend("{url: \"redis://h?ttl=8761h\"}"), "2:12", []string{"at most 8760h"}},
		"a short ttl= ":     {oneBackend("{url: \"etcd://h?ttl=500ms\"}"), "2:12", []string{"at least 1s"}},
		"a list as url":     {oneBackend("{url: [\"memory://\"]}"), "2:12", []string{"one value"}},
		"a list as backend": {oneBackend("[1]"), "2:6", []string{"mapping"}},
		"an unset variable": {oneBackend("\n    url: redis://:${NO_SUCH}@h"), "3:10", []string{"NO_SUCH is not set"}},
		"an open variable":  {oneBackend("{url: \"redis://:${PASSWORD@h\"}"), "2:12", []string{"$${"}},
		"a bad variable":    {oneBackend("{url: \"redis://:${1}@h\"}"), "2:12", []string{"letters"}},
		"no phase": {
			strings.Replace(rules(rule), ", phase: both", "", 1), "4:16",
			[]string{"phase is missing"},
		},
		"an unknown phase": {
			strings.Replace(rules(rule), "phase: both", "phase: forth", 1), "4:40",
			[]string{`"forth"`, "from, both or to"},
		},
		"to itself": {strings.Replace(rules(rule), "to: e", "to: a", 1), "4:30", []string{"same backend"}},
		"from a migration": {
			strings.Replace(rules(rule), "from: a", "from: m", 1), "4:23",
			[]string{"migration itself"},
		},
		"from nowhere": {
			strings.Replace(rules(rule), "from: a", "from: z", 1), "4:23",
			[]string{`no backend "z"`, "a, e, m"},
		},
		"a short migration": {
			strings.Replace(rules(rule), "m: {", "m: {ttl: 500ms, ", 1), "4:3",
			[]string{"at least 1s"},
		},
		"a migration's field": {
			strings.Replace(rules(rule), "from: a", "form: a", 1), "4:17",
			[]string{"known are from, to, phase"},
		},

		"a rule's field": {
			rules("{match: x, scenario: general, backends: a}"), "6:35",
			[]string{"known are match, scenario, backend, readers, permits"},
		},
		"no match": {rules("{scenario: general, backend: a}"), "6:5", []string{"match is missing"}},
		"an empty match": {
			rules("{match: \"\", scenario: general, backend: a}"), "6:13",
			[]string{"match is empty"},
		},
		"a star inside": {
			rules("{match: \"a*b\", scenario: general, backend: a}"), "6:13",
			[]string{"before its end"},
		},
		"two stars": {
			rules("{match: \"a**\", scenario: general, backend: a}"), "6:13",
			[]string{"before its end"},
		},
		"a NUL": {rules("{match: \"a\\0\", scenario: general, backend: a}"), "6:13", []string{"NUL"}},
		"a long match": {
			rules("{match: " + strings.Repeat("a", 513) + ", scenario: general, backend: a}"),
			"6:13",
			[]string{"512"},
		},
		"no such scenario": {
			rules("{match: a, scenario: generell, backend: a}"), "6:26",
			[]string{
				`no scenario "generell"`,
				"deduplication, general, inventory, consensus, transactional",
			},
		},
		"no such backend": {
			rules("{match: a, scenario: general, backend: b}"), "6:44",
			[]string{`no backend "b"`, "the file has a, e, m"},
		},
		"a URL for a word": {
			rules("{match: a, scenario: \"redis://:" + secret + "@h\", backend: a}"), "6:26",
			[]string{"(a URL)"},
		},
		"the same again": {
			rules("{match: x, scenario: general, backend: a}",
				"{match: x, scenario: general, backend: e}"),
			"7:13",
			[]string{`"x" can never match`, "line 6"},
		},
		"a covered name": {
			rules("{match: x/*, scenario: general, backend: a}",
				"{match: x/y, scenario: general, backend: e}"),
			"7:13",
			[]string{"can never match"},
		},
		"a covered prefix": {
			rules("{match: x*, scenario: general, backend: a}",
				"{match: x/*, scenario: general, backend: e}"),
			"7:13",
			[]string{"can never match"},
		},
		"after all": {
			rules(rule, "{match: x/*, scenario: general, backend: e}"), "7:13",
			[]string{"can never match", `rule "*"`},
		},
		"too weak": {
			rules("{match: l, scenario: consensus, backend: a}"), "6:46",
			[]string{
				"survives the death of a node", "ClockFree", "redis", "etcd (url etcd://",
				"zookeeper",
			},
		},
		"too weak in both": {
			rules("{match: l, scenario: consensus, backend: m}"), "6:46",
			[]string{"phase both", `from "a" to "e"`, "the weaker counts"},
		},
		"not transactional": {
			rules("{match: l, scenario: transactional, backend: e}"), "6:50",
			[]string{"database transaction", "postgres-row", "mode=row"},
		},
		"no readers": {
			rules("{match: l, scenario: general, backend: m, readers: true}"), "6:44",
			[]string{
				"scenario general, with readers", "many readers at once", "memory (url memory://)", "postgres-lease",
			},
		},
		"no permits": {
			rules("{match: l, scenario: general, backend: m, permits: 5}"), "6:44",
			[]string{"with 5 permits", "several permits at once (Permits 5)"},
		},
		"no readers in phase from": {
			inPhase("from", "{match: l, scenario: general, backend: m, readers: true}"), "6:44",
			[]string{"with readers", "many readers at once", "phase from"},
		},
		"no permits in phase to": { // zookeeper has them
			strings.Replace(inPhase("to", "{match: l, scenario: general, backend: m, permits: 5}"),
				"etcd://h", "zookeeper://h", 1), "6:44",
			[]string{"several permits at once (Permits 5)", "phase to"},
		},
		"nobody has it": {
			rules("{match: l, scenario: transactional, backend: m, readers: true}"), "6:50",
			[]string{"No backend of this version"},
		},
		"readers of a kind": {
			rules("{match: l, scenario: general, backend: a, readers: 5}"), "6:56",
			[]string{`readers "5"`, "true or false"},
		},
		"too many permits": {
			rules("{match: l, scenario: general, backend: a, permits: 1025}"), "6:56",
			[]string{`permits "1025"`, "1 to 1024"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, err := load(tt.text)
			bad, ok := errors.AsType[*config.Error](err)
			if !ok || c != nil || !errors.Is(err, backend.ErrInvalid) {
				t.Fatalf("got %v, %v, want an Error that matches ErrInvalid", c, err)
			}
			want := "config:" + tt.at + ": "
			if tt.at == "" {
				want = "config: "
			}
			if !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %q, want it to begin with %q", err, want)
			}
			for _, says := range tt.says {
				if !strings.Contains(err.Error(), says) {
					t.Errorf("got %q, want it to say %q", err, says)
				}
			}
			if len(bad.Problems) != 1 {
				t.Errorf("got %d problems for one mistake:\n%v", len(bad.Problems), err)
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("shows the password: %v", err)
			}
		})
	}
}

// A rule says of what kind its names are, and Explain says what that gives.
func TestSharedNames(t *testing.T) {
	c := mustLoad(t, rules("{match: r, scenario: inventory, backend: a, readers: true}",
		"{match: s, scenario: deduplication, backend: a, permits: 5}",
		"{match: one, scenario: deduplication, backend: m, permits: 1, readers: false}"))
	for i, want := range []struct {
		need backend.Need
		gets string
	}{
		{backend.Need{Fencing: backend.Anchored, Readers: true}, "Many may read at once"},
		{backend.Need{Permits: 5}, "Up to 5 may hold at once"},
		{backend.Need{}, ""},
	} {
		r := c.Rules()[i]
		if r.Need != want.need {
			t.Errorf("%s: got %+v, want %+v", r.Match, r.Need, want.need)
		}
		gets := strings.Join(r.Explain().Gets, "\n")
		if !strings.Contains(gets, want.gets) || want.gets == "" && strings.Contains(gets, "at once") {
			t.Errorf("%s: got %s, want %q", r.Match, gets, want.gets)
		}
	}
}

func TestAliasesAreRefused(t *testing.T) {
	_, err := load("backends: {a: {url: &x \"memory://\"}, b: {url: *x}}\nlocks:\n  - {match: x, " +
		"scenario: general, backend: b}\n")
	bad, _ := errors.AsType[*config.Error](err)
	if bad == nil || len(bad.Problems) != 2 || bad.Problems[0].Column != 21 || bad.Problems[1].Column != 47 {
		t.Errorf("got %v, want the anchor and the alias refused", err)
	}
}

// All mistakes are reported at once, in the order of the file, and some beyond that are counted.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := load(rules("{match: \"\", scenario: x, backend: y}", "{match: l, scenario: consensus, backend: a}"))
	lines := strings.Split(err.Error(), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "config:6:13: ") ||
		!strings.HasPrefix(lines[3], "config:7:46: ") {
		t.Errorf("got %d lines, want four, in order:\n%v", len(lines), err)
	}
	if !errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("a backend that is too weak: got %v, want ErrUnsupported too", err)
	}
	if _, err := load(rules("{match: x, scenario: y, backend: a}")); errors.Is(err, backend.ErrUnsupported) {
		t.Errorf("nothing is too weak: got ErrUnsupported: %v", err)
	}
	_, err = load("backends: {a: {url: \"memory://\"}}\nlocks:" + strings.Repeat("\n  - {}", 50))
	if got := strings.Count(err.Error(), "\n"); got > 20 || !strings.HasSuffix(err.Error(), "and 138 more") {
		t.Errorf("got %d lines of 150 problems:\n%v", got, err)
	}
}

func TestTheFileIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks.yaml")
	if err := os.WriteFile(path, []byte("backends: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := config.Load(f); err == nil || !strings.HasPrefix(err.Error(), path+":1:") {
		t.Errorf("got %v, want the path, line and column", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("disk gone") }

func TestWhatCannotBeRead(t *testing.T) {
	for what, tt := range map[string]struct {
		r    io.Reader
		says string
	}{
		"an error":  {broken{}, "disk gone"},
		"too large": {strings.NewReader(strings.Repeat("#", 1<<20) + "\n"), "larger"},
		"deep":      {strings.NewReader(strings.Repeat("[", 1<<19)), "not YAML"},
		"deep keys": {strings.NewReader(strings.Repeat("{a: ", 1<<17)), "not YAML"},
		"wide":      {strings.NewReader("backends: {" + strings.Repeat("a: 1, ", 1<<14) + "}"), "stands twice"},
		"bomb":      {strings.NewReader(bomb(60)), "anchors"},
	} {
		began := time.Now()
		_, err := config.Load(tt.r)
		if !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: got %.200v, want %q", what, err, tt.says)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("%s: took %v", what, took)
		}
	}
}

// bomb is a document whose aliases stand for 2^n values.
func bomb(n int) string {
	var b strings.Builder
	b.WriteString("backends:\n  a0: &a0 [x, x]\n")
	for i := 1; i <= n; i++ {
		fmt.Fprintf(&b, "  a%d: &a%d [*a%d, *a%d]\n", i, i, i-1, i-1)
	}
	return b.String()
}

// What a variable holds stays one value, whatever it looks like.
func TestVariables(t *testing.T) {
	vars := env(map[string]string{
		"HOST": "h", "EMPTY": "", "NAME": "x\", scenario: general}\n  - {match: \"y", "HALF": "mem",
		"PHASE": "to",
	})
	tests := map[string]string{
		"redis://${HOST}:1/${EMPTY}0":      "redis://h:1/0",
		"redis://h/$${HOST}/$HOME$":        "redis://h/${HOST}/$HOME$",
		"${HALF}ory://":                    "memory://",
		"redis://h/$$$${a}${HOST}/${HOST}": "redis://h/$$${a}h/h",
	}
	for text, want := range tests {
		c, err := config.LoadEnv(strings.NewReader(oneBackend("{url: '"+text+"'}")), vars)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := c.Backends()[0].URL(); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	c, err := config.LoadEnv(
		strings.NewReader(strings.Replace(
			rules("{match: \"${NAME}*\", scenario: general, backend: m}"), "both", "\"${PHASE}\"",
			1)),
		vars)
	if err != nil {
		t.Fatal(err)
	}
	if r := c.Rules(); len(r) != 1 || !strings.HasPrefix(r[0].Match, "x\", scen") ||
		r[0].Backend.Migrate.Phase != backend.PhaseTo {
		t.Errorf("got %d rules, want one with the value of the variable as its match", len(r))
	}
	// Keys are taken as they are.
	if _, err := config.LoadEnv(strings.NewReader("${HOST}: 1\n"), vars); err == nil ||
		!strings.Contains(err.Error(), "${HOST}") {
		t.Errorf("a variable as a key: got %v, want it to be unknown", err)
	}
}
