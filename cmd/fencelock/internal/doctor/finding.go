package doctor

import (
	"cmp"
	"net"
	"slices"
	"strings"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Broken Severity = "broken" // a promise does not hold as things are, or the backend cannot be used
	Risk   Severity = "risk"   // the promises hold until something happens: a crash, a failover, growth
	Unseen Severity = "unseen" // it could not be looked at, so nobody knows
	Note   Severity = "note"   // good to know: no promise depends on it
)

// Severities returns all of them, the worst first.
func Severities() []Severity { return []Severity{Broken, Risk, Unseen, Note} }

// AtLeast reports whether s is as bad as o or worse.
func (s Severity) AtLeast(o Severity) bool {
	return slices.Index(Severities(), s) <= slices.Index(Severities(), o)
}

// A Kind is something that the doctor can find. Docs list all kinds.
type Kind struct {
	ID       string   // stable; begins with the store's name
	Severity Severity // always the same for a kind
	Setting  string   // what it is about, by the store's own name where it has one
	Why      string   // which promise depends on it, and how
	Mend     string   // what to do: a command where there is one. {where}, {host}, {port} and {value} stand for the finding's
}

// A Finding is one thing that was found.
type Finding struct {
	ID       string   `json:"id"`
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // the server's host:port; empty: all of the store
	Setting  string   `json:"setting"`
	Value    string   `json:"value"`
	Why      string   `json:"why"`
	Mend     string   `json:"mend"`
}

// at makes the finding of a kind.
func (k Kind) at(where, value string) Finding {
	host, port, err := net.SplitHostPort(where)
	if err != nil {
		host, port = "HOST", "PORT"
	}
	mend := strings.NewReplacer("{where}", cmp.Or(where, "HOST:PORT"), "{host}", host, "{port}", port, "{value}", value).Replace(k.Mend)
	return Finding{k.ID, k.Severity, where, k.Setting, value, k.Why, mend}
}

// A Chapter is the kinds of one store.
type Chapter struct {
	Store string // as in the URL's scheme; empty: every store
	Kinds []Kind
}

// Chapters returns every kind that there is, in the order of the documentation.
func Chapters() []Chapter {
	return []Chapter{
		{"", commonKinds()},
		{"redis", redisKinds()},
		{"redlock", redlockKinds()},
		{"etcd", etcdKinds()},
		{"zookeeper", zookeeperKinds()},
		{"postgres", postgresKinds()},
		{"file", fileKinds()},
		{"memory", memoryKinds()},
	}
}

// kindOf returns the kind of an id. It panics if there is none: a check names a kind that nobody wrote down.
func kindOf(id string) Kind {
	for _, c := range Chapters() {
		for _, k := range c.Kinds {
			if k.ID == id {
				return k
			}
		}
	}
	panic("doctor: no kind " + id)
}

// Report is what an examination came to.
type Report struct {
	Backend  string    // as in Traits: "redis", "postgres-row"
	Servers  []string  // that were looked at, host:port each; of file the directory
	Findings []Finding // the worst first
}

// Count returns how many findings of a severity there are.
func (r *Report) Count(s Severity) int {
	n := 0
	for _, f := range r.Findings {
		if f.Severity == s {
			n++
		}
	}
	return n
}

// Sound reports whether nothing as bad as s was found.
func (r *Report) Sound(s Severity) bool {
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Severity.AtLeast(s) })
}

// sort puts the worst first, and of one severity those of one server together.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(slices.Index(Severities(), a.Severity), slices.Index(Severities(), b.Severity)),
			cmp.Compare(a.Where, b.Where),
		)
	})
}
