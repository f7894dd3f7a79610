// Package choose has the subcommand choose, which finds a scenario and a backend.
package choose

import (
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/config"
)

// Overlap is the harm if two run at once.
type Overlap string

// The overlaps.
const (
	Harmless Overlap = "harmless" // nothing: the work can be repeated
	Nuisance Overlap = "nuisance" // something that can be mended
	Never    Overlap = "never"    // it must not happen
)

// Overlaps returns all values, from the least to the most demanding.
func Overlaps() []Overlap { return []Overlap{Harmless, Nuisance, Never} }

// The most locks a second for which a kind of store is a good answer. They are rough numbers of one small
// server. Measure your own (fencelock bench).
const (
	MostConsensus = 2000 // of etcd and ZooKeeper, each of whose writes goes to a majority's disks
	MostRows      = 2000 // of Postgres
)

// Answers are the answers to the questions of choose.
type Answers struct {
	Overlap  Overlap // the harm if two run at once
	Tokens   bool    // the resource checks fencing tokens, or can be made to
	Node     bool    // locking must go on when a node of the store dies
	Postgres bool    // what the lock protects is a write in Postgres
	Rate     int     // locks a second, at the peak
}

// A Choice is the answer to Answers.
type Choice struct {
	Scenario config.Scenario
	Backend  string   // a backend of the catalog, by its Traits' name
	Why      []string // the reasons
	Cautions []string // answers that do not go together
	Others   []string // backends that would do as well
	YAML     string   // a file that config.Load accepts
}

// Choose returns the scenario and the backend that fit. The answers must be allowed ones.
func Choose(a Answers) Choice {
	var c Choice
	var name string
	switch a.Overlap {
	case Harmless:
		name = "deduplication"
		c.because("two at once do no harm, so any store will do: the cheapest one that keeps up")
		c.Backend = a.cheapest(&c)
	case Nuisance:
		name = "general"
		c.because("two at once can be mended: what matters is a lease that is renewed while the " +
			"work goes on")
		c.Backend = a.cheapest(&c)
	case Never:
		name = a.strict(&c)
	}
	c.Scenario, _ = config.ScenarioOf(name)
	c.Others = a.others(c)
	c.YAML = fmt.Sprintf("backends:\n  locks: {url: %q}\nlocks:\n  - {match: \"*\", scenario: "+
		"%s, backend: locks}\n", config.ExampleURL(c.Backend), name)
	return c
}

func (c *Choice) because(format string, args ...any) {
	c.Why = append(c.Why, fmt.Sprintf(format, args...))
}

func (c *Choice) caution(format string, args ...any) {
	c.Cautions = append(c.Cautions, fmt.Sprintf(format, args...))
}

// cheapest chooses the backend if correctness does not depend on it.
func (a Answers) cheapest(c *Choice) string {
	switch {
	case a.Node && a.Rate <= MostConsensus:
		c.because("a node may die and locking goes on: a majority of etcd's members is enough")
		return "etcd"
	case a.Node:
		c.because("a node may die and locking goes on: a majority of independent Redis servers "+
			"is enough, and keeps up with more than %d locks a second", MostConsensus)
		return "redlock"
	case a.Postgres && a.Rate <= MostRows:
		c.because("Postgres is there already, and keeps up with this many locks: no further server")
		return "postgres-lease"
	}
	c.because("Redis takes and frees a lock in one round trip each, and keeps up with the most " +
		"locks")
	return "redis"
}

// strict chooses the scenario and the backend if two must never run at once.
func (a Answers) strict(c *Choice) string {
	checks := a.Tokens || a.Postgres
	switch {
	case a.Postgres && !a.Node && a.Rate <= MostRows:
		c.because("the write is in Postgres: under a row lock it commits with the unlock, or not " +
			"at all, so a holder that was overtaken writes nothing")
		c.Backend = "postgres-row"
		if a.Tokens {
			c.because("fencing tokens are not needed for that, and can be checked as well")
		}
		return "transactional"
	case a.Node && a.Rate <= MostConsensus:
		c.because("two must never run at once, and a node may die: a majority that no server's " +
			"clock can mislead")
		c.Backend = "etcd"
		a.check(c, "also refuses the write of a holder that was paused")
		return "consensus"
	case !checks:
		c.because("two must never run at once and nothing checks tokens, so the lock alone must " +
			"hold: through restarts, failovers and clocks that jump")
		c.Backend = "etcd"
		if a.Rate > MostConsensus {
			c.caution("%d locks a second is much for one etcd or ZooKeeper cluster: let the "+
				"resource check tokens (then inventory on redis or redlock will do), lock "+
				"coarser, or spread the names over several clusters", a.Rate)
		}
		return "consensus"
	}
	c.because("two must never write, and the resource can refuse the one that was overtaken: " +
		"then the lock may be fast, and the token makes it safe")
	a.check(c, "is what makes this safe")
	if c.Backend = "redis"; a.Node {
		c.Backend = "redlock"
		c.because("a node may die and locking goes on: a majority of independent Redis servers "+
			"is enough, and keeps up with more than %d locks a second", MostConsensus)
	} else if a.Postgres {
		c.caution("%d locks a second is much for row locks of one Postgres: at %d and less the "+
			"scenario transactional needs no tokens at all", a.Rate, MostRows)
	}
	return "inventory"
}

// check adds the way to check the token.
func (a Answers) check(c *Choice, effect string) {
	switch {
	case a.Postgres:
		c.because("postgres.CheckToken, in the transaction that writes, %s", effect)
	case a.Tokens:
		c.because("the resource's check of lease.Token() %s", effect)
	}
}

// others returns the other backends that carry the scenario and suit the answers.
func (a Answers) others(c Choice) []string {
	var names []string
	for _, e := range c.Scenario.Backends() {
		t := e.Traits
		slow := t.ClockFree && t.SurvivesNode && a.Rate > MostConsensus ||
			strings.HasPrefix(t.Name, "postgres") && a.Rate > MostRows
		local := t.Name == "memory" || t.Name == "file" // they exclude fewer programs
		weak := a.Node && !t.SurvivesNode
		if t.Name != c.Backend && !slow && !local && !weak {
			names = append(names, t.Name)
		}
	}
	return names
}
