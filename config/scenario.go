package config

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// A Scenario is a row of the decision matrix: the purpose of names, and what their backend must have.
type Scenario struct {
	Name string
	For  string       // when to choose it, in a few words
	Need backend.Need // of the backend
	// Reentrant: Lock with a ctx that carries a lease of the name returns another lease on the same
	// hold (WithReentrancy).
	Reentrant bool
	Gets      []string // its promises, besides the backend's traits
	Not       []string // things that it does not promise
	Yours     string   // the program's own part; empty: nothing
}

// Scenarios returns the scenarios, from the least to the most demanding.
func Scenarios() []Scenario {
	return []Scenario{
		{
			Name: "deduplication",
			For:  "an occasional double run is harmless",
			Not: []string{
				"That nothing ever runs twice: after a loss of the store's data, or a pause of " +
					"the holder that outlasts its lease, it can.",
			},
			Yours: "Make the work repeatable.",
		},
		{
			Name: "general", Reentrant: true,
			For:  "a business mutex: a double run is a nuisance that can be mended",
			Need: backend.Need{Fencing: backend.Anchored},
			Gets: []string{
				"The lease is renewed in the background for as long as the work takes.",
				"A Lock further down the call stack, with a ctx that carries the lease, joins it " +
					"instead of waiting for itself.",
			},
			Not: []string{
				"That a holder which was paused for longer than its lease does not write " +
					"afterwards: nothing checks its token.",
			},
			Yours: "Pass the lease's ctx on, and stop when it ends.",
		},
		{
			Name: "inventory",
			For:  "money or stock: a lock, and a write that the resource refuses to a holder that was overtaken",
			Need: backend.Need{Fencing: backend.Anchored},
			Gets: []string{
				"A holder that was overtaken is refused by the resource, also where the lock " +
					"itself failed: each grant has a greater token, " +
					"as far as the backend's tokens rise.",
			},
			Not: []string{
				"Anything about a write whose token the resource does not check.",
			},
			Yours: "Check lease.Token() where the write happens, in the same step: " +
				"postgres.CheckToken, redis.NewFencedScript, etcd.Guard.Do, fence.Handler for HTTP, " +
				"or a column of your own.",
		},
		{
			Name: "consensus",
			For:  "two must never run at once: leaders, schedulers, jobs that nothing else protects",
			Need: backend.Need{Fencing: backend.Durable, ClockFree: true, SurvivesNode: true},
			Gets: []string{
				"The lock stands on a majority of the store's nodes.",
			},
			Not: []string{
				"That a holder which was paused between its last look at the lease and its write " +
					"does not write too late: only a resource that checks tokens can refuse that.",
				"On etcd, that no second holder appears while a leader that was stopped goes on " +
					"after its successor was chosen (leader-silent in docs/guarantees.md).",
			},
			Yours: "Stop when the lease's ctx ends; check tokens where the resource can.",
		},
		{
			Name: "transactional",
			For:  "the write is in Postgres: it commits with the unlock, or not at all",
			Need: backend.Need{Transactional: true},
			Gets: []string{
				"What is written through postgres.Tx(lease) commits with Unlock and is rolled " +
					"back with any loss of the lock: a late write cannot happen.",
			},
			Not: []string{
				"Anything about writes elsewhere, or through another connection.",
			},
			Yours: "Write through postgres.Tx(lease), and look at Unlock's error: it is the " +
				"commit's. A transaction of your own takes the same lock by postgres.LockTx.",
		},
	}
}

// ScenarioOf returns a scenario by name.
func ScenarioOf(name string) (Scenario, bool) {
	for _, s := range Scenarios() {
		if s.Name == name {
			return s, true
		}
	}
	return Scenario{}, false
}

func scenarioNames() []string {
	var names []string
	for _, s := range Scenarios() {
		names = append(names, s.Name)
	}
	return names
}

// Backends returns the entries of the catalog that can carry the scenario.
func (s Scenario) Backends() []backend.Entry { return backendsFor(s.Need) }

func backendsFor(n backend.Need) []backend.Entry {
	return slices.DeleteFunc(backend.Catalog(), func(e backend.Entry) bool { return len(n.Missing(e.Traits)) > 0 })
}

// asked describes the needs of the rule in a few words.
func (r *Rule) asked() string {
	words := "scenario " + r.Scenario.Name
	if r.Need.Readers {
		words += ", with readers"
	}
	if r.Need.Permits > 0 {
		words += fmt.Sprintf(", with %d permits", r.Need.Permits)
	}
	return words
}

// falls describes what a backend lacks for the rule, and names the backends that have it, in words that need no
// knowledge of Traits. It is empty if the backend lacks nothing.
func (r *Rule) falls(t backend.Traits) string {
	miss := r.Need.Missing(t)
	if len(miss) == 0 {
		return ""
	}
	var lacks []string
	for _, m := range miss {
		word, _, _ := strings.Cut(m, " ")
		lacks = append(lacks, fmt.Sprintf("%s (%s)", promiseOf(word).needed, m))
	}
	what := fmt.Sprintf("backend %s is %s", quote(r.Backend.Name), t.Name)
	if m := r.Backend.Migrate; m != nil {
		what = fmt.Sprintf("backend %s is a migration in phase %s, from %s to %s, "+
			"which promises what %s does",
			quote(r.Backend.Name), m.Phase, quote(m.From), quote(m.To), t.Name)
		if m.Phase == backend.PhaseBoth {
			what += " (the weaker counts)"
		}
	}
	what = fmt.Sprintf("rule %s: %s (%s) needs %s; %s, and does not have that. ",
		r.shown, r.asked(), r.Scenario.For, strings.Join(lacks, " and "), what)
	var have []string
	for _, e := range backendsFor(r.Need) {
		have = append(have, fmt.Sprintf("%s (url %s)", e.Traits.Name, kindOf(e.Traits.Name).url))
	}
	if have == nil {
		return what + "No backend of this version can carry it: ask for less"
	}
	return what + "These backends can carry it: " + strings.Join(have, ", ") +
		". Point the rule at one of them, or choose a scenario that asks less"
}
