package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// processes is group G.
var processes = []Rule{
	{
		Name: "G1", What: "two processes exclude each other and hand over",
		Why:   "A lock between goroutines only is a sync.Mutex.",
		Needs: Needs{Process: true}, Check: twoProcesses,
	},
	{
		Name: "G2", What: "a process that exits without Unlock",
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
		// it is up
		must(p.Ask(ctx, "lock", e.Name(),
			strconv.FormatInt(e.TTL().Milliseconds(), 10)))
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
	old := must(ps[0].Lock(ctx, name, e.TTL()))
	check(held(ctx, b, name, "held by another process"))
	ch := locking(ctx, b, name)
	check(waiting(ctx, b, name, 1))
	began := time.Now()
	must(ps[0].Ask(ctx, "unlock", name))
	r := must(granted(ctx, ch, time.Second+e.Slack(), "the waiter in this process"))
	e.Notef("handed over between processes in %v, the unlock included", r.at.Sub(began).Round(10*time.Microsecond))
	if r.lease.Token() <= old {
		return fmt.Errorf("token handed over: got %d after %d", r.lease.Token(), old)
	}
	return unlock(ctx, r.lease, "the waiter in this process")
}

func exitWithoutUnlock(ctx context.Context, e *Env) error {
	return e.holderGone(ctx, "exits", func(p *Process) { p.Send("exit"); <-p.done })
}

func killedHolder(ctx context.Context, e *Env) error {
	return e.holderGone(ctx, "is killed", (*Process).Kill)
}

// holderGone checks that a lock whose process is gone comes free in time, to a waiter and to a try.
func (e *Env) holderGone(ctx context.Context, how string, end func(*Process)) error {
	b := must(e.Open(ctx))
	for _, way := range []string{"a waiter", "a try"} {
		p := must(e.Process(ctx))
		name := e.Name()
		old := must(p.Lock(ctx, name, e.TTL()))
		bound := e.TTL() + time.Second + e.Slack()
		began := time.Now()
		end(p)
		if way == "a waiter" {
			r := must(granted(ctx, locking(ctx, b, name), bound, "a waiter, after the holder "+how))
			e.Notef("%s: free for a waiter after %v (TTL %v)", how, time.Since(began).Round(time.Millisecond), e.TTL())
			if r.lease.Token() <= old {
				return fmt.Errorf("token after the holder %s: got %d after %d", how, r.lease.Token(), old)
			}
			check(unlock(ctx, r.lease, "the next"))
			continue
		}
		if err := until(ctx, bound, "a try, after the holder "+how, func() (bool, error) {
			le, err := b.Mutex(name).TryLock(ctx)
			if err != nil {
				if isLocked(err) {
					err = nil
				}
				return false, err
			}
			return true, le.Unlock(ctx)
		}); err != nil {
			return errors.Join(err)
		}
	}
	return nil
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
			ttl := strconv.FormatInt(e.TTL().Milliseconds(), 10)
			must(ps[i].Ask(ctx, "churn", strconv.Itoa(names), ttl, name))
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
			r := must(granted(ctx, free[i], time.Until(end),
				fmt.Sprintf("name %d of two processes that were killed at work", i)))
			check(unlock(ctx, r.lease, "after the kill"))
		}
	}
	return nil
}
