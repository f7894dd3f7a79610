package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// processes is group G.
var processes = []Rule{
	{
		Name: "G1", What: "two processes exclude each other and hand over",
		Why:   "A lock between goroutines only is a sync.Mutex.",
		Needs: Needs{Process: true}, Check: twoProcesses,
	},
	{
		Name: "G2", What: "a process that exits without Unlock: free within TTL + 1s",
		Why:   "Programs crash; their locks must come free.",
		Needs: Needs{Process: true}, Check: exitWithoutUnlock,
	},
	{
		Name: "G3", What: "a process killed by SIGKILL: free within TTL + grace + 1s",
		Why:   "A kill gives no time to clean up.",
		Needs: Needs{Process: true}, Check: killedHolder,
	},
	{
		Name: "G4", What: "processes killed in the middle of their requests: every name is free in time",
		Why:   "A kill comes inside a request or a batch of them, not between two.",
		Needs: Needs{Process: true}, Alone: true, Check: killedAtWork,
	},
}

func twoProcesses(ctx context.Context, e *Env) error {
	const procs, times = 3, 20
	dir := must(os.MkdirTemp("", "conformance"))
	e.onClose(func() error { return os.RemoveAll(dir) })
	name, file := e.Name(), filepath.Join(dir, "counter")
	var answers []<-chan string
	var ps []*Process
	for range procs {
		p := must(e.Process(ctx))
		must(p.Lock(ctx, e.Name(), ample)) // it is up
		ps = append(ps, p)
	}
	for _, p := range ps {
		answers = append(answers, p.Send("add", name, file, strconv.Itoa(times)))
	}
	for i, ch := range answers {
		must(ps[i].await(ctx, ch, "add"))
	}
	text := must(os.ReadFile(file))
	if got, want := string(text), strconv.Itoa(procs*times); got != want {
		return fmt.Errorf("the counter of %d processes: got %s, want %s", procs, got, want)
	}
	// Hand over between processes.
	b := must(e.Open(ctx))
	old := must(ps[0].Lock(ctx, name, ample))
	check(held(ctx, b, name, "held by another process"))
	ch := locking(ctx, b, name)
	check(waiting(ctx, b, name, 1))
	began := time.Now()
	must(ps[0].Ask(ctx, "unlock", name))
	r := must(granted(ctx, ch, time.Second+e.Slack(), "the waiter in this process"))
	e.Notef("handed over between processes in %v, the unlock included", r.at.Sub(began).Round(10*time.Microsecond))
	check(e.above(r.lease.Token(), old, "handed over"))
	return unlock(ctx, r.lease, "the waiter in this process")
}

func exitWithoutUnlock(ctx context.Context, e *Env) error {
	return e.holderGone(ctx, "exits", 0, func(p *Process) { p.Send("exit"); <-p.done })
}

func killedHolder(ctx context.Context, e *Env) error {
	var grace time.Duration
	if e.traits.Grace {
		grace = e.TTL()
	}
	return e.holderGone(ctx, "is killed", grace, (*Process).Kill)
}

// holderGone checks that a lock whose process is gone comes free in time, to a waiter and, when its grace is over, to a
// try, and that nothing of the process stays.
func (e *Env) holderGone(ctx context.Context, how string, graceOfTry time.Duration, end func(*Process)) error {
	b := must(e.Open(ctx))
	for way, grace := range map[string]time.Duration{"a waiter": 0, "a try": graceOfTry} {
		who := way + ", after the holder " + how
		p := must(e.Process(ctx))
		name := e.Name()
		asked := time.Now()
		old := must(p.lock(ctx, name, e.TTL(), grace))
		bound := e.TTL() + grace + time.Second + e.Slack()
		began := time.Now()
		end(p)
		var le *fencelock.Lease
		if way == "a waiter" {
			le = must(granted(ctx, locking(ctx, b, name), bound, who)).lease
		} else {
			check(until(ctx, bound, who, func() (bool, error) {
				var err error
				if le, err = b.Mutex(name).TryLock(ctx); errors.Is(err, fencelock.ErrLocked) {
					err = nil
				}
				return le != nil, err
			}))
		}
		e.Notef("free for %s after %v (TTL %v, grace %v)",
			who, time.Since(began).Round(time.Millisecond), e.TTL(), grace)
		// A lease that is a connection ends with it, and with it its grace.
		kept, least := time.Since(asked), e.TTL()+grace-e.traits.Resolution
		if grace > 0 && !e.traits.LeasePerConn && kept < least {
			return fmt.Errorf("%s: granted %v after it asked, want at least %v", who, kept, least)
		}
		check(e.above(le.Token(), old, "of "+who))
		check(unlock(ctx, le, who))
	}
	if e.h.Store == nil {
		return nil
	}
	return e.emptyWithin(ctx, e.TTL()+2*time.Second)
}

// killedAtWork: two processes lock and unlock the same names as fast as they can, and are killed in the middle of that.
func killedAtWork(ctx context.Context, e *Env) error {
	const names = 32
	b := must(e.Open(ctx))
	bound := e.TTL() + e.traits.DeadWaiter + time.Second + e.Slack()
	for range e.count(1, 3, 10) {
		name := e.Name()
		var ps [2]*Process
		for i := range ps {
			ps[i] = must(e.Process(ctx))
			must(ps[i].Ask(ctx, "churn", strconv.Itoa(names), e.TTL().String(), name))
		}
		check(sleep(ctx, time.Duration(rand.Int64N(int64(100*time.Millisecond)))))
		var kills sync.WaitGroup
		for _, p := range ps {
			kills.Go(p.Kill)
		}
		kills.Wait()
		var free [names]<-chan result
		for i := range free {
			free[i] = locking(ctx, b, name+strconv.Itoa(i))
		}
		end := time.Now().Add(bound)
		for i := range free {
			who := fmt.Sprintf("name %d of two processes that were killed at work", i)
			check(turn(ctx, free[i], time.Until(end), who))
		}
	}
	return nil
}

// hostileDeaths are rules K3 and K35: a client dies in the middle of a request, or with many long
// names held.
var hostileDeaths = []Rule{
	{
		Name:  "K3",
		What:  "a process dies or stops while the store is at work for it: free within twice TTL + grace and a second",
		Why:   "A holder rarely dies idle: work that the store does for it must not keep the lock.",
		Needs: Needs{Process: true, Busy: true}, Check: diesAtWork,
	},
	{
		Name: "K35", What: "a process with many long names held is killed",
		Why:   "A store that forgets them all in one step may choke on it, and take everybody's locks along.",
		Needs: Needs{Process: true}, Alone: true, Check: manyLongNames,
	},
}

func diesAtWork(ctx context.Context, e *Env) error {
	b, ttl := must(e.Open(ctx)), e.Kept() // it is kept until the store is at work
	for _, way := range []struct {
		how    string
		unread bool
		stop   bool
		bound  time.Duration
	}{
		{how: "killed at work", bound: ttl + time.Second},
		{how: "killed with an answer that it has not read", unread: true, bound: ttl + time.Second},
		{how: "stopped at work", stop: true, bound: 2*ttl + time.Second},
		{how: "stopped with an answer that it has not read", unread: true, stop: true, bound: 2*ttl + time.Second},
	} {
		p := must(e.Process(ctx))
		name := e.Name()
		key := strings.TrimRight(e.prefix, ":") + "-" + name
		old := must(p.Lock(ctx, name, ttl))
		must(p.Ask(ctx, "busy", name, key, strconv.FormatBool(way.unread)))
		check(until(ctx, 10*time.Second, "the store is at work", func() (bool, error) {
			return e.h.Busy.Working(ctx, key, way.unread)
		}))
		began := time.Now()
		if way.stop {
			check(p.Stop())
		} else {
			p.Kill()
		}
		r := must(granted(
			ctx, locking(ctx, b, name), way.bound+e.Slack(),
			"the next, after the holder was "+way.how,
		))
		e.Notef("%s: free after %v (TTL %v)", way.how, time.Since(began).Round(time.Millisecond), ttl)
		check(e.above(r.lease.Token(), old, way.how))
		if way.stop {
			check(p.Continue())
			if said, err := p.Ask(ctx, "err", name); err != nil || said == "held" {
				return fmt.Errorf("%s, and continued: its first look says %q, %w; want a loss", way.how, said, err)
			}
		}
		check(unlock(ctx, r.lease, "the next"))
	}
	return nil
}

// longName is the i-th of many names of 512 bytes, of which each byte but the first few needs an escape where names are
// part of a path or a URL.
func longName(i int) string {
	head := fmt.Sprintf("%06d-", i)
	return head + strings.Repeat("é", (512-len(head))/2)
}

// lockMany locks so many long names, several at once, and keeps them.
func (c *child) lockMany(ctx context.Context, n int, ttl time.Duration) error {
	return atOnce(n, func(i int) error {
		_, err := c.l.Mutex(longName(i), fencelock.WithTTL(ttl)).Lock(ctx)
		return err
	})
}

// manyLongNames kills a process that holds many locks with long names. The store has to forget all of them at once,
// and to survive that.
func manyLongNames(ctx context.Context, e *Env) error {
	n, ttl := e.count(200, 3000, 10_000), ample/2 // to take many on a busy machine takes long
	if e.h.Short {
		ttl = e.Kept()
	}
	switch {
	case e.h.tiny:
		n = 100
	case e.traits.LeasePerConn:
		n = 20
	}
	b := must(e.Open(ctx))
	p := must(e.Process(ctx))
	began := time.Now()
	must(p.Ask(ctx, "many", strconv.Itoa(n), ttl.String()))
	took := time.Since(began)
	check(held(ctx, b, longName(n-1), "one of many"))
	p.Kill()
	began = time.Now()
	for i := range n { // in turn: a name is looked at when most others are free already
		bound := ttl + time.Second + e.Slack() + e.traits.Resolution - time.Since(began)
		what := fmt.Sprintf("name %d of %d, of 512 bytes, of a process that was killed", i+1, n)
		check(until(ctx, max(bound, time.Second), what, e.freeAgain(ctx, b, longName(i))))
	}
	e.Notef("%d locks with names of 512 bytes, taken in %v: free %v after the death of their process (TTL %v)",
		n, took.Round(time.Millisecond), time.Since(began).Round(time.Millisecond), ttl)
	if e.h.Server == nil || !e.h.Server.KeepsData() {
		return nil
	}
	// The store can read all that it has written.
	check(restart(e.h.Server, nil))
	return until(ctx, 10*time.Second, "a lock after the restart", func() (bool, error) {
		_, err := cycle(ctx, b, e.Name(), "after the restart")
		return err == nil, nil
	})
}

// freeAgain is for until: the name is free. It asks for less than a lock would cost.
func (e *Env) freeAgain(ctx context.Context, l *fencelock.Locker, name string) func() (bool, error) {
	return func() (bool, error) {
		info, err := l.Inspect(ctx, name)
		if errors.Is(err, fencelock.ErrUnavailable) {
			return false, nil // it may be busy with the many
		}
		return err == nil && !info.Held, err
	}
}
