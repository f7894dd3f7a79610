// Package config reads from YAML which names are locked in which backend, and opens all of it as one Locker.
//
//	backends:
//	  cache: {url: "redis://:${REDIS_PASSWORD}@10.0.0.5:6379/0"}
//	  safe:  {url: "etcd://e1:2379,e2:2379,e3:2379", ttl: 15s}
//	locks:                    # first match wins; the last one may be "*"
//	  - {match: "dedup/*",     scenario: deduplication, backend: cache}
//	  - {match: "inventory/*", scenario: inventory,     backend: cache}
//	  - {match: "leader",      scenario: consensus,     backend: safe}
//
// A rule for names with many readers has readers: true. A rule for a Semaphore has permits: 5, the most that a program
// asks for.
//
// A backend is a url and an optional ttl (else the one in the URL, else 30 s), or a migration between two others:
//
//	moving: {migrate: {from: cache, to: safe, phase: both}}   # from | both | to
//
// A rule's scenario ([Scenarios]) says what its names need. [Load] refuses a rule if its backend
// cannot carry the scenario, and connects to nothing. [Config.Open] looks again at the promises of the
// real drivers. A program chooses its drivers by its imports; this package imports none.
//
// Reading is strict. Unknown keys, keys that stand twice, rules that can never match, more than one
// document, more than 1 MiB, anchors, aliases and tags are errors with their line and column.
//
// ${VAR} in a value is taken from the environment once the YAML has been parsed, so the variable cannot
// change the file's structure; $${ stands for ${. A variable that is not set is an error. Messages quote
// the file, never the value of a variable, and nothing of a URL. Values in a URL must be percent-encoded.
package config

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// Config is a file that was loaded. It is never changed, and may be used by many goroutines.
type Config struct {
	backends []*Backend // in the file's order
	rules    []*Rule    // in the file's order
	only     []*Rule    // the rules that Open routes: all, or the rule of one
	one      string     // the name that For chose; empty: all
	look     bool       // Open only looks at migrations
	warnings []Problem
}

// A Backend is one of the named backends of a file.
type Backend struct {
	Name    string
	Scheme  string        // of its URL; empty for a migration
	TTL     time.Duration // the default of its names; 0: the library's
	Migrate *Migration    // nil for a backend with a URL
	// Traits are what it promises, as far as the file tells: by the URL's scheme and mode, and for
	// a migration by its phase.
	Traits backend.Traits
	// Known: Traits are known. A scheme that is not one of this library's is looked at by Open only.
	Known bool

	url    func() string // a function, so that no %+v shows a password
	from   *Backend      // of a migration
	to     *Backend      // of a migration
	timed  bool          // of a migration: the file gives its TTL
	at     pos
	traits pos // the place for messages about Traits
}

// URL returns the URL with its password; empty for a migration. It has ttl= also if the file gives the TTL beside the
// URL.
func (b *Backend) URL() string {
	if b.url == nil {
		return ""
	}
	raw := b.url()
	if u, err := backend.ParseURL(raw); err == nil && b.TTL > 0 && !u.Query().Has("ttl") {
		sep := "?"
		if u.RawQuery != "" || u.ForceQuery {
			sep = "&"
		}
		raw += sep + "ttl=" + b.TTL.String()
	}
	return raw
}

// LeaseTTL returns the TTL of a lease when no option sets one.
func (b *Backend) LeaseTTL() time.Duration {
	if b.TTL == 0 {
		return fencelock.DefaultTTL
	}
	return b.TTL
}

// A Migration moves names from one backend of the file to another.
type Migration struct {
	From, To string
	Phase    backend.Phase
}

// A Rule sends names to a backend.
type Rule struct {
	Match    string // a name, or the beginning of names followed by *
	Scenario Scenario
	Need     backend.Need // the scenario's, and the readers: and permits: of the rule
	Backend  *Backend
	Line     int // where the rule begins in the file, from 1
	Column   int

	shown string // Match as the file has it
}

// Backends returns the backends of the file in its order, used or not.
func (c *Config) Backends() []*Backend { return slices.Clone(c.backends) }

// Rules returns the rules in the file's order: the first that matches a name decides.
func (c *Config) Rules() []*Rule { return slices.Clone(c.rules) }

// Warnings returns problems that are allowed but probably not meant, such as a backend that no rule uses.
func (c *Config) Warnings() []Problem { return slices.Clone(c.warnings) }

// RuleOf returns the rule of a name, or an error that matches ErrInvalid: for a bad name, and for one
// that no rule matches.
func (c *Config) RuleOf(name string) (*Rule, error) {
	if err := backend.CheckName(name); err != nil {
		return nil, err
	}
	i, err := find(c.rules, name)
	if err != nil {
		return nil, err
	}
	return c.rules[i], nil
}

// For returns the part of c that one name needs: Open connects to that name's backend only, and no other name
// has a rule. A migration still knows all the names that it moves. Errors are as of RuleOf.
func (c *Config) For(name string) (*Config, error) {
	rule, err := c.RuleOf(name)
	if err != nil {
		return nil, err
	}
	part := *c
	part.only, part.one = []*Rule{rule}, name
	return &part, nil
}

// Look returns c for a tool that looks and breaks: Open then touches no gate of a migration and reports no client of
// one, it needs the stores of the migration's phase only, and names that move cannot be locked.
func (c *Config) Look() *Config {
	part := *c
	part.look = true
	return &part
}

// Scope returns the names that go to a backend, as a migration has them: the patterns of its rules, and the patterns
// of earlier rules that send a part of these names elsewhere.
func (c *Config) Scope(b *Backend) backend.Scope {
	var scope backend.Scope
	for i, r := range c.rules {
		if r.Backend == b {
			scope = append(scope, backend.Pattern{Match: r.Match})
			continue
		}
		takes := func(later *Rule) bool { return later.Backend == b && covers(later.Match, r.Match) }
		if slices.ContainsFunc(c.rules[i+1:], takes) {
			scope = append(scope, backend.Pattern{Match: r.Match, Stays: true})
		}
	}
	return scope
}
