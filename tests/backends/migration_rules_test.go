//go:build unix

package backends

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	from = backend.PhaseFrom
	both = backend.PhaseBoth
	to   = backend.PhaseTo
)

// deploy restarts members one by one until they are in these phases, while the others go on. A member that is not
// in its phase yet is stopped in an orderly way.
func (f *fleet) deploy(n int, phases ...backend.Phase) {
	f.Helper()
	want := map[backend.Phase]int{}
	for _, p := range phases {
		want[p]++
	}
	var leaving []*process
	for _, p := range f.members {
		if p.phase == "" {
			continue
		}
		if want[p.phase] > 0 {
			want[p.phase]--
		} else {
			leaving = append(leaving, p)
		}
	}
	for _, p := range phases {
		if want[p] == 0 {
			continue
		}
		want[p]--
		if len(leaving) > 0 {
			leaving[0].stop()
			leaving = leaving[1:]
		}
		if got := f.start(p).ask("load", "x", "y"); got != "ok" {
			f.Fatalf("load: %s", got)
		}
		f.progress(n)
	}
}

// rounds is how many grants every member has after each restart.
func rounds() int {
	if testing.Short() {
		return 5
	}
	return 8
}

// walkThereAndBack is I1: while a fleet is restarted member by member, from phase to phase, its
// members lock the same names. One of them is killed on the way, with what it holds.
//
// All the time a process that knows of no migration locks a name that does not move.
func walkThereAndBack(f *fleet) {
	n := rounds()
	plain := f.start("")
	if got := plain.ask("load", "stays/z"); got != "ok" {
		f.Fatalf("load: %s", got)
	}
	f.deploy(n, from, from, from)
	f.deploy(n, both, both, both)
	for _, p := range f.members {
		if p.phase == "" {
			continue
		}
		if got := p.ask("lock", "killed"); got != "held" {
			f.Fatalf("lock: %s", got)
		}
		p.kill()
		break
	}
	f.deploy(n, to, to, to)
	f.raise(to)
	f.deploy(n, both, both, both)
	f.deploy(n, from, from, from)
	if c := plain.counts(); c.refused > 0 {
		f.Errorf("a name that does not move was refused %d times", c.refused)
	}
}

// rollBack is I3: the fleet turns round half-way, before the switch, in the middle of it, and after it.
func rollBack(f *fleet) {
	n := rounds() / 2
	f.deploy(n, from, from, from)
	f.deploy(n, both, from, from)
	f.deploy(n, from, from, from)
	f.deploy(n, both, both, both)
	// A switch cannot end while somebody holds in the old store alone: it is given up.
	straggler := f.store(from)
	r := f.request("straggler")
	g, err := straggler.Acquire(f.Context(), r)
	if err != nil {
		f.Fatal(err)
	}
	a := f.assignment(to)
	a.Patience = 5 * time.Second
	got, _ := f.launch(a).line()
	if !strings.Contains(got, `"straggler" by plain`) {
		f.Errorf("a switch past a holder: got %q, want it to name the lock and its holder", got)
	}
	if old, new := f.notBothOpen(f.pair()); !old || new {
		f.Errorf("after a switch that was given up (%s): old open %v, new open %v, "+
			"want the old one as before", got, old, new)
	}
	f.deploy(n, both, both, from)
	if err := straggler.Release(f.Context(), &core.Hold{Request: r, Grant: g}); err != nil {
		f.Errorf("what was held all the time: %v", err)
	}
	f.deploy(n, both, both, both)
	f.deploy(n, to, both, both)
	f.raise(to)
	f.deploy(n, both, both, both)
	f.deploy(n, from, from, both)
}

// request is one of a client that knows of no migration.
func (f *fleet) request(name string) *backend.Request {
	return &backend.Request{
		Name: name, Nonce: fmt.Sprintf("%032x", rand.Uint64()), Owner: "plain",
		TTL: 5 * time.Minute, Lost: func(error) {},
	}
}

// switcherIsKilled is I2: a process that switches is killed before each of its calls to a store,
// and at any moment, there and back. Members in phase both go on all the time, and another process
// finishes the switch.
func switcherIsKilled(f *fleet) {
	f.deploy(1, both, both)
	p := f.pair()
	f.closeNow(f.locker(from))                            // the old store is open: this is where everybody comes from
	deaths, random := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, 4 // a switch makes nine calls
	if testing.Short() || !f.whole {
		deaths, random = []int{6, 8, 9}, 1 // it has closed the other store; read its source; raised this one
	}
	survived := 0
	there, toThere := from, to
	kill := func(at int, after time.Duration) {
		f.raise(there)
		a := f.assignment(toThere)
		a.DieAt = at
		switcher := f.launch(a)
		if after > 0 {
			timer := time.AfterFunc(after, func() { _ = switcher.cmd.Process.Kill() })
			defer timer.Stop()
		}
		if line, alive := switcher.line(); alive {
			if !strings.HasPrefix(line, "survived") {
				f.Fatalf("a switcher in the direction of %s: %s", toThere, line)
			}
			survived++
		}
		f.notBothOpen(p)
		f.progress(1)
		last := f.locker(toThere)
		if old, new := f.notBothOpen(p); old != (toThere == from) || new != (toThere == to) {
			f.Errorf("after the switch to %s: old open %v, new open %v", toThere, old, new)
		}
		f.cycle(last, "nobody in both")
		f.cycle(last, "x2")
		f.closeNow(last)
		there, toThere = toThere, there
	}
	for _, at := range deaths { // there and back by turns, so each step in both directions
		kill(at, 0)
		kill(at, 0)
	}
	for range random {
		kill(1000, time.Duration(1+rand.IntN(250))*time.Millisecond)
	}
	f.Logf("%d switchers, of whom %d lived; what they left was finished within %v",
		2*len(deaths)+random, survived, f.slowest.Round(time.Millisecond))
	if survived > random {
		f.Errorf("%d switchers lived that were to die: a switch has fewer steps than this rule thinks", survived-random)
	}
}

// straggler is I5: a process in phase from is stopped with a lock over three switches, and nobody knows of it any more.
func straggler(f *fleet) {
	p := f.start(from)
	if got := p.ask("lock", "moving"); got != "held" {
		f.Fatalf("lock: %s", got)
	}
	if got := p.ask("add", "moving"); got != "added" {
		f.Fatalf("add: %s", got)
	}
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		f.Fatal(err)
	}
	f.forget()
	plain := f.locker("")
	for _, phase := range []backend.Phase{to, from, to} {
		l := f.locker(phase) // the first of them waits until the store has expired what the process holds
		if phase == to {
			f.raise(to)
		}
		f.lockAndAdd(l, "moving")
		f.lockAndAdd(plain, "stays/behind")
		f.closeNow(l)
	}
	last := f.locker(to)
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		f.Fatal(err)
	}
	for _, c := range []struct{ verb, name, want string }{
		{"err", "moving", fencelock.ErrLost.Error()},
		{"add", "moving", fencelock.ErrStale.Error()},
		{"cycle", "moving", "has closed this store to clients in phase from"},
		{"cycle", "another", "has closed this store to clients in phase from"},
		{"cycle", "stays/behind", "cycled"},
	} {
		if got := p.ask(c.verb, c.name); !strings.Contains(got, c.want) {
			f.Errorf("%s %s: got %q, want %q", c.verb, c.name, got, c.want)
		}
	}
	f.lockAndAdd(last, "moving")
	f.closeNow(last)
}

// oldConfiguration is I7: the move is done, the fleet knows of the new store alone, and a process
// starts that somebody forgot, with the configuration of the first day. Whether a lock of the fleet
// is held or not, the process is refused and the fleet does not notice.
func oldConfiguration(f *fleet) {
	f.deploy(1, both, both)
	f.deploy(1, to, to)
	for _, p := range f.members {
		p.stop()
	}
	pair := f.pair()
	if err := pair.Finish(f.Context()); err != nil {
		f.Fatal(err)
	}
	var fleet []*process
	for range 2 {
		a := f.assignment("")
		a.From = f.to
		p := f.launch(a)
		p.want("ready")
		f.members[p.name] = p
		fleet = append(fleet, p)
		if got := p.ask("load", "x", "y"); got != "ok" {
			f.Fatalf("load: %s", got)
		}
	}
	for i, p := range fleet {
		forgotten := f.assignment(from)
		forgotten.Patience = 5 * time.Second
		if got, _ := f.launch(forgotten).line(); !strings.Contains(got, "is finished") {
			f.Errorf("the forgotten process: got %q, want it refused, for the migration is finished", got)
		}
		if old, new := f.notBothOpen(pair); old || !new {
			f.Errorf("after the forgotten process: old open %v, new open %v, want the new one as before", old, new)
		}
		f.progress(3)
		if i == 0 { // and once more while a lock of the fleet is held
			if got := p.ask("lock", "held"); got != "held" {
				f.Fatalf("lock: %s", got)
			}
		}
	}
	for _, p := range fleet {
		if c := p.counts(); c.refused > 0 {
			f.Errorf("%s of the fleet was refused %d times", p.name, c.refused)
		}
	}
}

// forget makes both stores forget what clients have reported, as they do after a minute of silence.
func (f *fleet) forget() {
	f.Helper()
	p := f.pair()
	cs, err := p.Clients(f.Context())
	if err != nil || len(cs) != 1 {
		f.Fatalf("clients: got %v, %v, want one", cs, err)
	}
	if err := errors.Join(f.store(from).Withdraw(f.Context(), cs[0].Client),
		f.store(to).Withdraw(f.Context(), cs[0].Client)); err != nil {
		f.Fatal(err)
	}
}

// lockAndAdd locks a name in this process, and adds to its guarded counter.
func (f *fleet) lockAndAdd(l *fencelock.Locker, name string) {
	f.Helper()
	called := history.Now()
	le, err := l.Mutex(name).TryLock(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	h := f.log.Hold(le, called)
	m := &member{assignment: assignment{Dir: f.dir}, log: f.log}
	_, err = m.add(f.Context(), le)
	h.End()
	if err := errors.Join(err, le.Unlock(f.Context())); err != nil {
		f.Fatal(err)
	}
}

// nobodyLockedInBoth is I6: the tokens of a name rise from phase to phase and back, although
// nobody locks it in phase both, and whichever store is ahead.
func nobodyLockedInBoth(f *fleet) {
	for _, phase := range []backend.Phase{from, both, to, both, from, both, to} {
		l := f.locker(phase)
		if phase != both {
			f.cycle(l, "quiet")
			f.raise(phase)
			f.cycle(l, "quiet")
		}
		f.closeNow(l)
	}
}
