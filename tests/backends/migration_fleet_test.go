//go:build unix

package backends

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	_ "github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
)

// stores are two stores, and what a rule may do to them.
type stores struct {
	ttl     time.Duration // as short as both allow
	from    string        // URL
	to      string
	servers [2]server // nil: nothing to stop
	whole   bool      // the rules run with their greatest numbers
	brittle bool      // a hold of the new store ends with its client's connection
}

// server can be stopped and started again with its data.
type server interface {
	Stop() error
	Start() error
}

// pairs are the moves that rules are checked on. small: the first two are enough for -short.
var pairs = []struct {
	name  string
	small bool
	start func(t *testing.T, durable bool) stores // durable: a server may be stopped and started again
}{
	{"file-file", true, func(t *testing.T, _ bool) stores {
		return stores{whole: true, ttl: 2 * time.Second, from: "file://" + t.TempDir(), to: "file://" + t.TempDir()}
	}},
	{"redis-etcd", true, func(t *testing.T, durable bool) stores {
		r, e := redisThat(t, durable), servers.Etcd(t, servers.EtcdOptions{})
		return stores{
			whole: true, ttl: 3 * time.Second, from: "redis://" + r.Addr(),
			to: "etcd://" + e.Servers()[0].Addr(), servers: [2]server{r, e.Servers()[0]},
		}
	}},
	{"redis-postgres", false, func(t *testing.T, durable bool) stores {
		r, p := redisThat(t, durable), servers.Postgres(t,
			servers.PostgresOptions{Config: []string{"max_connections=800"}})
		return stores{
			ttl: 2 * time.Second, from: "redis://" + r.Addr(),
			to:      "postgres://postgres@" + p.Addr() + "/postgres?sslmode=disable",
			servers: [2]server{r, p},
			brittle: true, // the mode is row
		}
	}},
	{"etcd-redis", false, func(t *testing.T, durable bool) stores {
		r, e := redisThat(t, durable), servers.Etcd(t, servers.EtcdOptions{})
		return stores{
			ttl: 3 * time.Second, from: "etcd://" + e.Servers()[0].Addr(),
			to: "redis://" + r.Addr(), servers: [2]server{e.Servers()[0], r},
		}
	}},
}

func redisThat(t *testing.T, keeps bool) *servers.Server {
	t.Helper()
	if !keeps {
		return servers.Redis(t, servers.RedisOptions{})
	}
	return servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes", "appendfsync always"}})
}

// TestMigration is group I: each rule on each pair, and what happened is checked as one history.
//
// It is not parallel: the suite counts the goroutines of this process, of which these rules have
// many. Nor is a pair beside the next one: the fleets of one are some thirty processes.
func TestMigration(t *testing.T) {
	for _, pair := range pairs {
		t.Run(pair.name, func(t *testing.T) {
			if testing.Short() && !pair.small {
				t.Skip("-short: file to file and redis to etcd")
			}
			s := pair.start(t, false)
			for _, rule := range []struct {
				name  string
				check func(f *fleet)
			}{
				{"I1", walkThereAndBack},
				{"I2", switcherIsKilled},
				{"I3", rollBack},
				{"I5", straggler},
				{"I6", nobodyLockedInBoth},
				{"I7", oldConfiguration},
			} {
				t.Run(rule.name, func(t *testing.T) {
					t.Parallel()
					f := newFleet(t, s)
					rule.check(f)
					f.check()
				})
			}
			t.Run("I4", func(t *testing.T) {
				t.Parallel()
				if s.servers[0] == nil {
					t.Skip("files have no server that could be stopped")
				}
				outages(newFleet(t, pair.start(t, true)))
			})
		})
	}
}

// fleet is the processes that move from one store to the other.
type fleet struct {
	*testing.T
	stores
	dir     string
	log     *history.Log
	out     *os.File
	open    map[backend.Phase]gated // clients of the stores, from and to
	members map[string]*process
	began   int           // processes
	slowest time.Duration // that a client of this process took to start
}

var fleets atomic.Int64

// newFleet is in a keyspace of its own of both stores, whose tokens are 17 minutes ahead of the new one's clock.
func newFleet(t *testing.T, s stores) *fleet {
	t.Helper()
	f := &fleet{T: t, stores: s, dir: t.TempDir(), open: map[backend.Phase]gated{}, members: map[string]*process{}}
	f.from, f.to = f.under(s.from), f.under(s.to)
	out, err := os.Create(filepath.Join(f.dir, "history-parent"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = out.Close() })
	f.out, f.log = out, history.NewLog(out, "parent", "")
	f.raise(from)
	return f
}

// under returns a URL with a prefix of this fleet.
func (f *fleet) under(raw string) string {
	f.Helper()
	u, err := url.Parse(raw)
	if err != nil {
		f.Fatal(err)
	}
	q := u.Query()
	q.Set("prefix", fmt.Sprintf("fleet-%d:", fleets.Add(1)))
	u.RawQuery = q.Encode()
	return u.String()
}

// gated is a client of a store that can take part in a migration.
type gated struct {
	core.Gater
	driver backend.Driver
}

// store returns a client of one store that knows of no migration.
func (f *fleet) store(side backend.Phase) gated {
	f.Helper()
	if d, ok := f.open[side]; ok {
		return d
	}
	d, err := backend.Open(f.Context(), map[backend.Phase]string{from: f.from, to: f.to}[side], nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = d.Close() })
	f.open[side] = gated{core.Of(d).(core.Gater), d}
	return f.open[side]
}

// raise puts a store's tokens far ahead of its clock and of the other store.
func (f *fleet) raise(side backend.Phase) {
	f.Helper()
	a, err := f.store(from).Source(f.Context())
	b, err2 := f.store(to).Source(f.Context())
	if err := errors.Join(err, err2); err != nil {
		f.Fatal(err)
	}
	if err := f.store(side).Raise(f.Context(), max(a, b)+1e9); err != nil {
		f.Fatal(err)
	}
}

func (f *fleet) pair() migrate.Pair {
	f.Helper()
	p, err := migrate.PairOf("walk", moved, f.store(from).driver, f.store(to).driver)
	if err != nil {
		f.Fatal(err)
	}
	return p
}

// notBothOpen fails the test if both stores let clients of a single phase in.
func (f *fleet) notBothOpen(p migrate.Pair) (old, new bool) {
	f.Helper()
	st, err := p.Status(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	if old, new = st.From.Open(true), st.To.Open(false); old && new {
		f.Errorf("both stores are open: %+v, %+v", st.From.Gate, st.To.Gate)
	}
	return old, new
}

// locker opens a client of this process in a phase. It is closed with the test, unless it was before.
func (f *fleet) locker(phase backend.Phase) *fencelock.Locker {
	f.Helper()
	a := f.assignment(phase)
	ctx, cancel := context.WithTimeout(f.Context(), a.Patience)
	defer cancel()
	began := time.Now()
	d, err := a.open(ctx)
	f.slowest = max(f.slowest, time.Since(began))
	if err != nil {
		f.Fatalf("a client in phase %s: %v", phase, err)
	}
	l, err := fencelock.New(d, fencelock.WithTTL(f.ttl))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	return l
}

// cycle locks and unlocks a name, and records it.
func (f *fleet) cycle(l *fencelock.Locker, name string) {
	f.Helper()
	called := history.Now()
	le, err := l.Mutex(name).TryLock(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	h := f.log.Hold(le, called)
	h.End()
	if err := le.Unlock(f.Context()); err != nil {
		f.Fatal(err)
	}
}

// closeNow closes a client before the test ends.
func (f *fleet) closeNow(l *fencelock.Locker) {
	f.Helper()
	if err := l.Close(); err != nil {
		f.Fatal(err)
	}
}

// assignment is what a new process of the fleet is told.
func (f *fleet) assignment(phase backend.Phase) assignment {
	f.began++
	return assignment{
		From: f.from, To: f.to, Phase: phase, Name: fmt.Sprintf("p%d", f.began), Dir: f.dir,
		TTL: f.ttl, Patience: 20 * time.Second,
	}
}

// write adds an event that is not the parent's own.
func (f *fleet) write(e history.Event) {
	f.Helper()
	raw, err := json.Marshal(e)
	if err == nil {
		_, err = f.out.Write(append(raw, '\n'))
	}
	if err != nil {
		f.Fatal(err)
	}
}

// until polls a condition that must come true.
func (f *fleet) until(what string, ok func() bool) {
	f.Helper()
	for end := time.Now().Add(40 * time.Second); !ok(); {
		if time.Now().After(end) {
			f.Fatalf("not within 40s: %s", what)
		}
		time.Sleep(20 * time.Millisecond) // the pause of a bounded poll
	}
}

// progress waits until every member has had n more grants.
func (f *fleet) progress(n int) {
	f.Helper()
	for _, p := range f.members {
		want := p.counts().grants + n
		f.until(fmt.Sprintf("%d more grants of %s in phase %s", n, p.name, p.phase), func() bool {
			return p.counts().grants >= want
		})
	}
}

// check stops the members, and checks the history of all.
func (f *fleet) check() []history.Event {
	f.Helper()
	for _, p := range f.members {
		p.stop()
	}
	parts, err := filepath.Glob(filepath.Join(f.dir, "history-*"))
	if err != nil {
		f.Fatal(err)
	}
	var events []history.Event
	for _, path := range parts {
		part, err := os.Open(path)
		if err != nil {
			f.Fatal(err)
		}
		more, err := history.Read(part)
		if err := errors.Join(err, part.Close()); err != nil {
			f.Fatalf("%s: %v", path, err)
		}
		events = append(events, more...)
	}
	for _, name := range countersOf(events) {
		n, err := history.Counter{Path: filepath.Join(f.dir, "counter-"+strings.ReplaceAll(name, "/", "-"))}.Peek()
		if err != nil {
			f.Fatal(err)
		}
		events = append(events, history.Event{Kind: history.Counted, Process: "parent", Name: name, Value: n})
	}
	o := history.Options{Brittle: f.brittle}
	if err := errors.Join(history.Check(events), history.FencedMutex(events, o)); err != nil {
		f.Error(err)
	}
	f.Log(summary(events, len(parts)-1))
	return events
}

func countersOf(events []history.Event) []string {
	var names []string
	seen := map[string]bool{}
	for _, e := range events {
		if e.Kind == history.Wanted && !seen[e.Name] {
			seen[e.Name] = true
			names = append(names, e.Name)
		}
	}
	return names
}

func summary(events []history.Event, processes int) string {
	by := map[string]int{}
	added := 0
	for _, e := range events {
		switch e.Kind {
		case history.Granted:
			by[e.Phase]++
		case history.Added:
			added++
		}
	}
	return "processes " + strconv.Itoa(processes) + ", acknowledged writes " + strconv.Itoa(added) +
		", grants in phase " + fmt.Sprintf("%v", by)
}
