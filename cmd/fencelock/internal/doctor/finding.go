package doctor

import (
	"cmp"
	_ "embed"
	"net"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"
)

// Severity says how bad a finding is.
type Severity string

// The severities, the worst first.
const (
	Broken Severity = "broken" // a promise does not hold as things are, or the backend is of no use
	Risk   Severity = "risk"   // the promises hold until something happens: a crash, a failover
	Unseen Severity = "unseen" // it could not be looked at
	Note   Severity = "note"   // good to know: no promise depends on it
)

// Severities returns all of them, the worst first.
func Severities() []Severity { return []Severity{Broken, Risk, Unseen, Note} }

// rank is the place of a severity: 0 is the worst.
func (s Severity) rank() int { return slices.Index(Severities(), s) }

// A Finding is one thing that was found, or, without Where and Value, one that can be found.
type Finding struct {
	ID       string   `json:"id"` // stable; begins with the store's name
	Severity Severity `json:"severity"`
	Where    string   `json:"where"`   // the server's host:port; empty: all of the store
	Setting  string   `json:"setting"` // by the store's own name where it has one
	Value    string   `json:"value"`
	Why      string   `json:"why"`  // which promise depends on it, and how
	Mend     string   `json:"mend"` // the remedy: a command where there is one
}

//go:embed findings.yaml
var findings []byte

// Kinds returns all findings that the doctor knows.
func Kinds() []Finding {
	var all []Finding
	if err := yaml.Load(findings, &all, yaml.WithKnownFields()); err != nil {
		panic(err) // it is embedded
	}
	return all
}

// add notes a finding of a kind.
func (x *exam) add(id, where, value string) {
	i := slices.IndexFunc(x.kinds, func(k Finding) bool { return k.ID == id })
	if i < 0 {
		panic("doctor: findings.yaml has no " + id)
	}
	f := x.kinds[i]
	host, port, err := net.SplitHostPort(where)
	if err != nil {
		host, port = "HOST", "PORT"
	}
	f.Where, f.Value = where, value
	f.Mend = strings.NewReplacer("{where}", cmp.Or(where, "HOST:PORT"),
		"{host}", host, "{port}", port, "{value}", value).Replace(f.Mend)
	x.report.Findings = append(x.report.Findings, f)
}

// Report is the result of an examination.
type Report struct {
	Backend  string    // as in Traits: "redis", "postgres-row"
	Servers  []string  // host:port of each that was looked at; of file the directory
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
	return !slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Severity.rank() <= s.rank()
	})
}

// sort sorts the findings by severity, the worst first, and then by server.
func (r *Report) sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(
			cmp.Compare(a.Severity.rank(), b.Severity.rank()),
			cmp.Compare(a.Where, b.Where),
		)
	})
}
