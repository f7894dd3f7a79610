package config

import (
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/fencelock/fencelock/backend"
)

// Load reads a configuration and checks it without connecting to anything: that it is well formed,
// and that each rule's backend can carry its scenario. ${VAR} is taken from the environment of this
// process. The error is an *[Error] with every problem and its place; it matches ErrInvalid. An r
// with a Name method, such as *os.File, gives the file's name in messages.
func Load(r io.Reader) (*Config, error) { return LoadEnv(r, os.LookupEnv) }

// LoadEnv is Load with another environment: lookup returns a variable's value, and whether it is set.
func LoadEnv(r io.Reader, lookup func(key string) (string, bool)) (*Config, error) {
	l := loader{document: document{lookup: lookup}, c: &Config{}, moves: map[*Backend]*yaml.Node{}}
	if root := l.parse(r); root != nil {
		l.file(root)
	}
	if len(l.problems) > 0 {
		file := "config"
		if f, ok := r.(interface{ Name() string }); ok {
			file = f.Name()
		}
		return nil, &Error{File: file, Problems: l.problems.sorted()}
	}
	l.warn()
	l.c.only = l.c.rules
	return l.c, nil
}

// loader makes a Config of a document.
type loader struct {
	document
	c     *Config
	moves map[*Backend]*yaml.Node // the migrate of each backend that has one
}

// file reads the whole file.
func (l *loader) file(root *yaml.Node) {
	top := l.fields(root, "the file", 2, "backends", "locks")
	if n := top["backends"]; n != nil {
		l.pairs(n, "backends", l.backend)
		for _, b := range l.c.backends { // now all names are known
			if n := l.moves[b]; n != nil {
				l.migration(b, n)
			}
		}
		if len(l.c.backends) == 0 && len(l.problems) == 0 {
			l.problems.add(at(n), "backends: want at least one, such as cache: {url: \"redis://localhost:6379/0\"}")
		}
	}
	l.items(top["locks"], "locks", l.rule)
}

// backend reads one named backend. It leaves migrate: for later.
func (l *loader) backend(name text, n *yaml.Node) {
	what := "backend " + quote(name.value)
	if !isBackendName(name.value) {
		l.problems.add(name.at, "%s: want a name of 1 to 64 letters, digits, - _ and .", what)
		return
	}
	b := &Backend{Name: name.value, at: name.at, traits: name.at}
	l.c.backends = append(l.c.backends, b)
	before := len(l.problems)
	f := l.fields(n, what, 0, "url", "ttl", "migrate")
	if ttl, ok := l.text(f["ttl"], what+": ttl"); ok {
		d, err := time.ParseDuration(ttl.value)
		if err != nil || d <= 0 || d > mostTTL {
			l.problems.add(ttl.at,
				"%s: ttl %s: want a duration such as 500ms, 15s or 2m, at most 8760h",
				what, quote(ttl.shown))
		} else {
			b.TTL = d
		}
	}
	switch {
	case f["url"] != nil && f["migrate"] != nil:
		l.problems.add(name.at, "%s has a url and a migrate: want one of them", what)
	case f["url"] != nil:
		if u, ok := l.text(f["url"], what+": url"); ok {
			l.url(b, u, f["ttl"] != nil)
		}
	case f["migrate"] != nil:
		l.moves[b] = f["migrate"]
	case len(l.problems) == before:
		l.problems.add(name.at,
			"%s has no url: want url: such as \"redis://localhost:6379/0\", "+
				"or migrate: {from, to, phase}", what)
	}
}

func isBackendName(s string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
	return s != "" && len(s) <= 64 && strings.Trim(s, allowed) == ""
}

// migration reads the migrate of a backend.
func (l *loader) migration(b *Backend, n *yaml.Node) {
	what := "backend " + quote(b.Name) + ": migrate"
	f := l.fields(n, what, 3, "from", "to", "phase")
	from, to := l.leg(f["from"], what+": from"), l.leg(f["to"], what+": to")
	phase, ok := l.text(f["phase"], what+": phase")
	if !ok || from == nil || to == nil {
		return
	}
	b.from, b.to = from, to
	b.Migrate = &Migration{From: from.Name, To: to.Name, Phase: backend.Phase(phase.value)}
	if !slices.Contains(phases(), b.Migrate.Phase) {
		l.problems.add(phase.at, "%s: phase %s: want from, both or to", what, quote(phase.shown))
		return
	}
	if from == to {
		l.problems.add(at(f["to"]), "%s: from and to are the same backend", what)
		return
	}
	b.Traits, b.Known = movingTraits(b.Migrate.Phase, from.Traits, to.Traits), from.Known && to.Known
	if b.timed = b.TTL != 0; !b.timed {
		b.TTL = movingTTL(b.Migrate.Phase, from, to)
	}
	l.checkTTL(b)
}

// phases returns the phases of a migration in their order.
func phases() []backend.Phase {
	return []backend.Phase{backend.PhaseFrom, backend.PhaseBoth, backend.PhaseTo}
}

// leg returns the backend that a migration names.
func (l *loader) leg(n *yaml.Node, what string) *Backend {
	name, ok := l.text(n, what)
	if !ok {
		return nil
	}
	b := l.named(name, what)
	if b != nil && l.moves[b] != nil {
		l.problems.add(name.at, "%s: %s is a migration itself: want a backend with a url", what, quote(name.shown))
		return nil
	}
	return b
}

// named returns the backend of this name.
func (l *loader) named(name text, what string) *Backend {
	var have []string
	for _, b := range l.c.backends {
		if b.Name == name.value {
			return b
		}
		have = append(have, b.Name)
	}
	if len(have) > 0 { // else the missing backends are the problem
		l.problems.add(name.at, "%s: there is no backend %s: the file has %s", what, quote(name.shown), listed(have))
	}
	return nil
}

// rule reads one rule.
func (l *loader) rule(n *yaml.Node) {
	f := l.fields(n, "a rule of locks", 3, "match", "scenario", "backend", "readers", "permits")
	match, okMatch := l.text(f["match"], "match")
	name, okScenario := l.text(f["scenario"], "scenario")
	where, okBackend := l.text(f["backend"], "backend")
	r := &Rule{Match: match.value, shown: quote(match.shown), Line: n.Line, Column: n.Column}
	if okMatch {
		if wrong := checkMatch(match.value); wrong != "" {
			l.problems.add(match.at, "%s", wrong)
		} else {
			l.reachable(r, match.at)
		}
	}
	if okScenario {
		s, known := ScenarioOf(name.value)
		if !known {
			l.problems.add(name.at, "rule %s: there is no scenario %s: there are %s",
				r.shown, quote(name.shown), listed(scenarioNames()))
		}
		r.Scenario, r.Need = s, s.Need
	}
	l.shared(r, f)
	if okBackend {
		r.Backend = l.named(where, "rule "+r.shown)
	}
	if r.Backend != nil && r.Backend.Known && r.Scenario.Name != "" {
		if wrong := r.falls(r.Backend.Traits); wrong != "" {
			l.problems.add(where.at, "%s", wrong)
			l.problems[len(l.problems)-1].unsupported = true
		}
	}
	l.c.rules = append(l.c.rules, r)
}

// shared reads readers: and permits: of a rule.
func (l *loader) shared(r *Rule, f map[string]*yaml.Node) {
	if t, ok := l.text(f["readers"], "readers"); ok {
		if t.value != "true" && t.value != "false" {
			l.problems.add(t.at, "rule %s: readers %s: want true or false", r.shown, quote(t.shown))
		}
		r.Need.Readers = t.value == "true"
	}
	if t, ok := l.text(f["permits"], "permits"); ok {
		n, err := strconv.Atoi(t.value)
		if err != nil || n < 1 || n > backend.MostPermits {
			l.problems.add(t.at, "rule %s: permits %s: want a number from 1 to %d",
				r.shown, quote(t.shown), backend.MostPermits)
			return
		}
		if n > 1 { // a Semaphore of one is a Mutex
			r.Need.Permits = n
		}
	}
}

// reachable refuses a rule if an earlier one takes all its names.
func (l *loader) reachable(r *Rule, at pos) {
	for _, before := range l.c.rules {
		if before.Match != "" && covers(before.Match, r.Match) {
			l.problems.add(at,
				"rule %s can never match: rule %s in line %d comes first and takes all its "+
					"names: put the narrower one first, or take one out",
				r.shown, before.shown, before.Line)
			return
		}
	}
}

// warn finds problems that are allowed but probably not meant.
func (l *loader) warn() {
	used := map[string]bool{}
	for _, r := range l.c.rules {
		used[r.Backend.Name] = true
		if m := r.Backend.Migrate; m != nil {
			used[m.From], used[m.To] = true, true
		}
	}
	var ws problems
	for _, b := range l.c.backends {
		if !used[b.Name] {
			ws.add(b.at, "nothing uses backend %s: it is never opened", quote(b.Name))
		}
	}
	for _, r := range l.c.rules {
		if r.Backend.Migrate != nil && r.Backend.Known {
			l.warnOfPhases(&ws, r)
		}
	}
	l.c.warnings = ws.sorted()
}

// warnOfPhases warns of a later phase in which a rule would not load.
func (l *loader) warnOfPhases(ws *problems, r *Rule) {
	from, to := r.Backend.from, r.Backend.to
	for _, phase := range phases() {
		t := movingTraits(phase, from.Traits, to.Traits)
		then := Backend{TTL: r.Backend.TTL}
		if !r.Backend.timed {
			then.TTL = movingTTL(phase, from, to)
		}
		if ttl := then.LeaseTTL(); ttl < t.MinTTL {
			ws.add(pos{r.Line, r.Column},
				"rule %s: in phase %s a ttl of %v would be too short for backend %s, which needs %v then, and the "+
					"file would not load", r.shown, phase, ttl, quote(r.Backend.Name), t.MinTTL)
			return
		}
		if miss := r.Need.Missing(t); len(miss) > 0 {
			ws.add(pos{r.Line, r.Column},
				"rule %s: in phase %s backend %s would not carry %s any more: %s is "+
					"missing, and the file would not load",
				r.shown, phase, quote(r.Backend.Name), r.asked(), strings.Join(miss, ", "))
			return
		}
	}
}
