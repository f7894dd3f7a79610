// Package doctor looks at the settings of a real server and tells which of them break what its
// backend promises.
//
// It only asks. It writes nothing, takes no lock and creates no schema. Besides connections a server
// may notice a ZooKeeper session, which the doctor closes. A question that the doctor has no right to
// ask becomes a finding of its own, since an unknown setting may be a wrong one.
package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	_ "github.com/fencelock/fencelock/backend/all" // the drivers' openers check the URL
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/core"
)

// askMost bounds one question to one server.
const askMost = 3 * time.Second

// Examine looks at the store that a URL names. The error matches backend.ErrInvalid for a URL that
// no driver takes and for a user that is refused, and backend.ErrUnavailable if no server answers.
// It shows no password, and neither does the Report.
func Examine(ctx context.Context, rawURL string) (*Report, error) {
	return newExam().run(ctx, rawURL)
}

// exam is one examination.
type exam struct {
	kinds  []Finding
	now    func() time.Time  // the wall clock of this machine
	least  map[string]string // the oldest version of each server that serves
	hold   time.Duration     // how long a lease of Postgres' mode row may be held
	script string            // asks a Redis server for a right

	u      *url.URL
	q      *backend.Query
	secure *tls.Config // of a ZooKeeper ensemble
	keys   url.Values
	prefix string
	ttl    time.Duration
	mu     sync.Mutex // for the goroutines of a client library
	report Report
}

func newExam() *exam {
	return &exam{
		kinds: Kinds(), now: time.Now, hold: time.Minute, script: mayScript,
		least: map[string]string{
			"redis": "6", "cluster": "7", "etcd": "3.4.31", "etcd-3.5": "3.5.13",
			"zookeeper": "3.5.3", "postgres": "15",
		},
	}
}

// saw notes a server that was looked at.
func (x *exam) saw(where string) { x.report.Servers = append(x.report.Servers, where) }

func (x *exam) run(ctx context.Context, rawURL string) (*Report, error) {
	if err := x.read(ctx, rawURL); err != nil {
		return nil, err
	}
	look := map[string]func(context.Context) error{
		"redis": x.redis, "rediss": x.redis, "redis+sentinel": x.redis, "redis+cluster": x.redis,
		"redlock": x.redlock, "redlocks": x.redlock,
		"etcd": x.etcd, "etcds": x.etcd,
		"zookeeper": x.zookeeper, "zookeepers": x.zookeeper,
		"postgres": x.postgres, "postgresql": x.postgres,
		"file": x.file, "memory": x.memory,
	}[x.u.Scheme]
	if look == nil {
		return nil, backend.Invalid("the doctor does not know the backend of scheme %q", x.u.Scheme)
	}
	for _, e := range backend.Catalog() {
		if slices.Contains(e.Schemes, x.u.Scheme) {
			x.report.Backend = e.Traits.Name
			if least := e.Traits.MinTTL; x.ttl < least {
				return nil, backend.Invalid("a TTL of %v is too short for %s: at least %v is needed",
					x.ttl, x.u.Scheme, least)
			}
		}
	}
	if err := look(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if core.TimedOut(err) && x.u.Host != "" { // the error may name no server
			err = fmt.Errorf("no answer from %s: %w", x.u.Host, err)
		}
		return nil, cli.Unanswered(err)
	}
	x.report.sort()
	return &x.report, nil
}

// read takes the URL apart. The driver itself checks it. It is opened with hosts that do not exist,
// because some drivers send requests as soon as they are opened.
func (x *exam) read(ctx context.Context, rawURL string) error {
	var err error
	if x.u, err = backend.ParseURL(rawURL); err != nil {
		return err
	}
	x.keys, x.ttl, x.prefix = x.u.Query(), fencelock.DefaultTTL, backend.DefaultPrefix
	if x.keys.Has("prefix") {
		x.prefix = x.keys.Get("prefix")
	}
	if x.u.Scheme == "file" {
		return x.readFile(ctx) // opening it would make the directory
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	nowhere, real := elsewhere(rawURL)
	d, err := backend.Open(over, nowhere, func(q *backend.Query) {
		x.q, x.ttl = q, q.Duration("ttl", x.ttl)
	})
	if err == nil {
		return d.Close()
	}
	if errors.Is(err, backend.ErrInvalid) && !x.fewNodes() {
		why := strings.TrimPrefix(err.Error(), backend.ErrInvalid.Error()+": ")
		return backend.Invalid("%s", real.Replace(why))
	}
	return nil
}

// elsewhere returns the URL with an address without a server in place of each host, and a replacer
// that puts the real hosts back into a message.
func elsewhere(rawURL string) (string, *strings.Replacer) {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	from := strings.LastIndexByte(rest[:end], '@') + 1
	if scheme == "memory" {
		return rawURL, strings.NewReplacer()
	}
	var nowhere, back []string
	fake := map[string]string{}
	for host := range strings.SplitSeq(rest[from:end], ",") {
		if fake[host] == "" {
			fake[host] = fmt.Sprintf("127.0.0.%d:1", 1+len(fake)%250) // port 1 is no store's
			back = append(back, fake[host], host)
		}
		nowhere = append(nowhere, fake[host])
	}
	fakeURL := scheme + "://" + rest[:from] + strings.Join(nowhere, ",") + rest[end:]
	return fakeURL, strings.NewReplacer(back...)
}

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

const (
	// skewMost is how far a server's clock may be from this machine's. A clock that NTP keeps is within a few
	// milliseconds of it.
	skewMost = time.Second
	// looks is how often a server is asked for the time; the fastest answer counts.
	looks = 5
	// slowShare is the part of the TTL that a round trip may take.
	slowShare = 10
)

// sample is a comparison of a server's clock with ours.
type sample struct {
	offset time.Duration // its clock minus ours
	took   time.Duration // the round trip
}

// sample asks a server for its time.
func (x *exam) sample(
	ctx context.Context, ask func(context.Context) (time.Time, error),
) (sample, error) {
	var best sample
	for i := range looks {
		one, cancel := context.WithTimeout(ctx, askMost)
		wall, began := x.now(), time.Now()
		theirs, err := ask(one)
		took := time.Since(began)
		cancel()
		if err != nil {
			return sample{}, err
		}
		if i == 0 || took < best.took {
			best = sample{theirs.Sub(wall.Add(took / 2)), took}
		}
	}
	return best, nil
}

// judge checks a clock and a round trip. resolution is the step of the server's answers.
func (x *exam) judge(where string, s sample, resolution time.Duration) {
	if s.offset.Abs() > skewMost+s.took/2+resolution {
		x.add("clock-differs", where, ahead(s.offset))
	}
	x.judgeTrip(where, s.took)
}

func (x *exam) judgeTrip(where string, took time.Duration) {
	if took > x.ttl/slowShare {
		x.add("round-trip-slow", where,
			fmt.Sprintf("%v, with a TTL of %v", took.Round(time.Millisecond), x.ttl))
	}
}

// ahead describes how far a clock is off.
func ahead(d time.Duration) string {
	word := "ahead"
	if d < 0 {
		word = "behind"
	}
	return fmt.Sprintf("%v %s", d.Abs().Round(100*time.Millisecond), word)
}
