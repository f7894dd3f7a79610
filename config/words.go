package config

import (
	"fmt"

	"github.com/fencelock/fencelock/backend"
)

// promise is a Trait in words.
type promise struct {
	need   string // the field's name, as Need.Missing has it
	head   string // as the head of a column
	needed string // what a scenario that needs it asks for
	has    func(backend.Traits) bool
	yes    string // the promise; may be empty
	no     string // the missing promise without it
}

// promises returns the Traits that make a difference to a program, in the order of the documents.
func promises() []promise {
	return []promise{
		{
			need: "Fencing", head: "durable tokens", needed: "fencing tokens that can be relied on",
			has: func(t backend.Traits) bool { return t.Fencing >= backend.Durable },
			yes: "Fencing tokens rise through everything that the store survives; what makes the " +
				"next one greater is on stable storage or on a majority.",
			no: "Tokens that surely rise if the store loses its data and its clock goes back " +
				"over them at the same time.",
		},
		{
			need: "FIFO", head: "first come, first served", needed: "a fair queue",
			has: func(t backend.Traits) bool { return t.FIFO },
			yes: "Waiters are served first come, first served.",
			no:  "An order among waiters: whoever asks at the right moment is served.",
		},
		{
			need: "ClockFree", head: "safe whatever the servers' clocks do",
			needed: "a lock whose safety does not depend on the clocks of servers",
			has:    func(t backend.Traits) bool { return t.ClockFree },
			yes:    "No clock of a server matters for who holds the lock.",
			no: "Exclusion while a server's clock jumps forward: the lock may end early in the " +
				"store, and two may hold it.",
		},
		{
			need: "SurvivesNode", head: "survives a node",
			needed: "a lock that survives the death of a node of the store",
			has:    func(t backend.Traits) bool { return t.SurvivesNode },
			yes:    "One node of the store may die, and neither the lock nor the service is lost.",
			no: "Exclusion, or even service, when the store's one server dies, is replaced by a " +
				"replica, or loses its data.",
		},
		{
			need: "Transactional", head: "the write commits with the unlock",
			needed: "a lock that is part of the database transaction that writes",
			has:    func(t backend.Traits) bool { return t.Transactional },
			yes:    "What the holder writes through the lock's own transaction commits with Unlock, or not at all.",
		},
	}
}

func promiseOf(need string) promise {
	for _, p := range promises() {
		if p.need == need {
			return p
		}
	}
	switch need {
	case "Readers":
		return promise{needed: "many readers at once"}
	case "Permits":
		return promise{needed: "several permits at once"}
	}
	return promise{needed: need}
}

// kind is a backend of the catalog in words.
type kind struct {
	url   string // how its URL looks
	runs  string // the software that must run
	suits string // the purpose
	local string // programs that it cannot exclude; empty: it excludes every program that can reach the store
}

// kindOf returns the words for a backend by its Traits' name.
func kindOf(name string) kind {
	switch name {
	case "memory":
		return kind{
			"memory://", "nothing: it is inside one process", "tests",
			"Anything outside this one process: each Open is a store of its own.",
		}
	case "file":
		return kind{
			"file:///var/lib/locks", "nothing: files on one machine",
			"cron jobs, scripts, one host", "Anything on another machine.",
		}
	case "redis":
		return kind{
			"redis://host:6379/0", "Redis 6+, also with Sentinel or Cluster",
			"an occasional double run is harmless, or the resource checks tokens", "",
		}
	case "redlock":
		return kind{
			"redlock://h1:6379,h2:6379,h3:6379", "3, 5 … independent Redis 6+",
			"several Redis servers and no etcd, ZooKeeper or Postgres", "",
		}
	case "etcd":
		return kind{
			"etcd://h1:2379,h2:2379,h3:2379", "etcd 3.5.13+ (of 3.4, 3.4.31+)",
			"leaders, jobs that must not run twice", "",
		}
	case "zookeeper":
		return kind{
			"zookeeper://h1:2181,h2:2181,h3:2181", "ZooKeeper (tested: 3.8)",
			"the same, where ZooKeeper runs already", "",
		}
	case "postgres-row":
		return kind{
			"postgres://host/db?mode=row", "PostgreSQL 15+",
			"the write and the lock in one transaction: nothing is written " +
				"by a holder that lost it",
			"",
		}
	case "postgres-advisory":
		return kind{
			"postgres://host/db?mode=advisory", "PostgreSQL 15+",
			"the same for long holds that nobody waits for: vacuum goes on", "",
		}
	case "postgres-lease":
		return kind{"postgres://host/db?mode=lease", "PostgreSQL 15+", "many leases, long ones, behind a pooler", ""}
	}
	return kind{url: name + "://…", runs: "?", suits: "?"}
}

// ExampleURL returns how a URL of a backend of the catalog looks, by the backend's Traits.Name,
// with a placeholder for each host.
func ExampleURL(name string) string { return kindOf(name).url }

// alwaysGets is the promise of every scenario on every backend.
const alwaysGets = "While the store keeps its data and its time, the holder is told of a loss " +
	"before anybody else is granted the lock, or in a Postgres transaction can commit nothing more."

// An Explanation has the promises to a rule's names in words.
type Explanation struct {
	Gets  []string // promises
	Not   []string // things that are not promised
	Yours string   // the program's own part; empty: nothing
}

// Explain returns the promises to the rule's names. Only Open knows the promises of a driver outside the catalog.
func (r *Rule) Explain() Explanation {
	t := r.Backend.Traits
	e := Explanation{
		Gets:  append([]string{alwaysGets}, r.Scenario.Gets...),
		Not:   append([]string{}, r.Scenario.Not...),
		Yours: r.Scenario.Yours,
	}
	if r.Need.Readers {
		e.Gets = append(e.Gets, "Many may read at once, and one may write, alone (RWMutex).")
	}
	if r.Need.Permits > 0 {
		e.Gets = append(e.Gets, fmt.Sprintf("Up to %d may hold at once (Semaphore).", r.Need.Permits))
	}
	if !r.Backend.Known {
		e.Not = append(e.Not,
			"Anything that can be said without connecting: the scheme "+r.Backend.Scheme+
				" is not one of this library's.")
		return e
	}
	if t.Fencing == backend.Anchored {
		e.Gets = append(e.Gets,
			"Fencing tokens rise through everything that the store survives, and through the "+
				"loss of its data unless its clock goes back.")
	}
	for _, p := range promises() {
		switch {
		case p.has(t) && p.yes != "":
			e.Gets = append(e.Gets, p.yes)
		case !p.has(t) && p.no != "":
			e.Not = append(e.Not, p.no)
		}
	}
	if t.LeasePerConn {
		e.Not = append(e.Not,
			"Leases for nothing: each one that is held, and each name that a process waits for, "+
				"costs a connection to the database.")
	}
	if local := kindOf(t.Name).local; local != "" {
		e.Not = append(e.Not, local)
	}
	if m := r.Backend.Migrate; m != nil {
		e.Gets, e.Not = append(e.Gets, moveGets(m)), append(e.Not, moveNot(m)...)
	}
	return e
}

func moveGets(m *Migration) string {
	where := map[backend.Phase]string{
		backend.PhaseFrom: fmt.Sprintf("locked in %q", m.From),
		backend.PhaseBoth: fmt.Sprintf("locked in %q, then in %q", m.From, m.To),
		backend.PhaseTo:   fmt.Sprintf("locked in %q", m.To),
	}
	return fmt.Sprintf("In phase %s names are %s; programs in a neighbouring phase are excluded, "+
		"and tokens go on rising.", m.Phase, where[m.Phase])
}

func moveNot(m *Migration) []string {
	if m.Phase != backend.PhaseBoth {
		return nil
	}
	return []string{
		fmt.Sprintf("Service while either %q or %q is down: acquiring fails rather than splitting.", m.From, m.To),
	}
}
