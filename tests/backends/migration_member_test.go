//go:build unix

package backends

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/conformance/history"
	"github.com/fencelock/fencelock/internal/core"
)

// memberEnv makes the test binary a member of a fleet that moves: its assignment in JSON.
const memberEnv = "FENCELOCK_MIGRATION_MEMBER"

// assignment is what a member is told when it starts.
type assignment struct {
	From, To string        // URLs, prefix and all
	Phase    backend.Phase // empty: it knows of no migration, and is a client of From
	Name     string        // of the process
	Dir      string        // for its history and the guarded counters
	TTL      time.Duration
	Patience time.Duration // how long it may take to start
	// DieAt: it is a switcher, which kills itself before its DieAt-th call to a store.
	DieAt int
}

var moved = backend.Scope{{Match: "stays/*", Stays: true}, {Match: "*"}}

func init() {
	raw := os.Getenv(memberEnv)
	if raw == "" {
		return
	}
	logging.Disable()
	var a assignment
	err := json.Unmarshal([]byte(raw), &a)
	if err == nil && a.DieAt > 0 {
		err = a.switchAndDie()
	} else if err == nil {
		err = a.serve()
	}
	if err != nil {
		fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
	os.Exit(0)
}

// open opens a client of the migration.
func (a assignment) open(ctx context.Context) (backend.Driver, error) {
	from, err := backend.Open(ctx, a.From, nil)
	if err != nil || a.Phase == "" {
		return from, err
	}
	to, err := backend.Open(ctx, a.To, nil)
	if err != nil {
		return nil, errors.Join(err, from.Close())
	}
	d, err := migrate.New(ctx, migrate.Options{Move: "walk", Scope: moved, Phase: a.Phase, From: from, To: to})
	if err != nil {
		return nil, errors.Join(err, from.Close(), to.Close())
	}
	return d, nil
}

// member is a process of the fleet.
type member struct {
	assignment
	l       *fencelock.Locker
	log     *history.Log
	grants  atomic.Int64
	absent  atomic.Int64 // acquisitions without an answer of the store
	refused atomic.Int64 // by a gate
	held    map[string]*fencelock.Lease
}

// serve obeys the commands on stdin, one a line, and answers each with a line, until stdin ends or it is told to stop.
func (a assignment) serve() error {
	out, err := os.OpenFile(filepath.Join(a.Dir, "history-"+a.Name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), a.Patience)
	defer cancel()
	d, err := a.open(ctx)
	if err != nil {
		return err
	}
	m := &member{assignment: a, log: history.NewLog(out, a.Name, string(a.Phase)), held: map[string]*fencelock.Lease{}}
	if m.l, err = fencelock.New(d, fencelock.WithTTL(a.TTL), fencelock.WithOwner(a.Name)); err != nil {
		return err
	}
	fmt.Println("ready")
	loading, stop := context.WithCancel(context.Background())
	var load sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		switch words[0] {
		case "load": // names…
			for range 2 {
				load.Go(func() { m.load(loading, words[1:]) })
			}
			fmt.Println("ok")
		case "counts":
			fmt.Println(m.grants.Load(), m.absent.Load(), m.refused.Load())
		case "stop":
			stop()
			load.Wait()
			if err := errors.Join(m.l.Close(), m.log.Err(), out.Sync()); err != nil {
				return err
			}
			fmt.Println("stopped")
			return nil
		default:
			answer, err := m.obey(words[0], words[1])
			if err != nil {
				answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
			}
			fmt.Println(answer)
		}
	}
	stop()
	return io.ErrUnexpectedEOF // its parent is gone
}

func (m *member) obey(verb, name string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	switch verb {
	case "lock":
		called := history.Now()
		le, err := m.l.Mutex(name).TryLock(ctx)
		if err != nil {
			return "", err
		}
		m.log.Hold(le, called)
		m.held[name] = le
		return "held", nil
	case "add": // with the lease that it has, or had
		_, err := m.add(ctx, m.held[name])
		return "added", err
	case "err":
		return "held", m.held[name].Err()
	case "cycle":
		return "cycled", m.cycle(ctx, name, m.l.Mutex(name).TryLock)
	}
	return "", fmt.Errorf("unknown command %q", verb)
}

// load locks names, waiting and trying, until ctx ends.
func (m *member) load(ctx context.Context, names []string) {
	for ctx.Err() == nil {
		name := names[rand.IntN(len(names))]
		mutex := m.l.Mutex(name)
		lock := mutex.Lock
		if rand.IntN(3) == 0 {
			lock = mutex.TryLock
		}
		if err := m.cycle(ctx, name, lock); err != nil && ctx.Err() == nil {
			switch {
			case errors.Is(err, fencelock.ErrUnavailable):
				m.absent.Add(1)
			case errors.Is(err, fencelock.ErrUnsupported):
				m.refused.Add(1)
			}
		}
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // a program does something else
	}
}

// cycle locks a name, adds to its guarded counter and unlocks it.
func (m *member) cycle(ctx context.Context, name string, lock func(context.Context) (*fencelock.Lease, error)) error {
	called := history.Now()
	le, err := lock(ctx)
	if err != nil {
		return err
	}
	m.grants.Add(1)
	h := m.log.Hold(le, called)
	_, err = m.add(ctx, le)
	h.End()
	return errors.Join(err, le.Unlock(ctx))
}

// add adds one to the guarded counter of a lease's name. Both the read and the write show the token.
func (m *member) add(ctx context.Context, le *fencelock.Lease) (int64, error) {
	c := history.Counter{Path: filepath.Join(m.Dir, "counter-"+strings.ReplaceAll(le.Name(), "/", "-"))}
	m.log.Wanted(le.Name(), le.Token())
	n, err := c.Read(le.Token())
	if err != nil {
		return 0, err
	}
	if rand.IntN(8) == 0 {
		select {
		case <-time.After(time.Duration(rand.IntN(3000)) * time.Microsecond):
		case <-ctx.Done():
		}
	}
	if err := c.Write(le.Token(), n+1); err != nil {
		return 0, err
	}
	m.log.Added(le.Name(), le.Token(), n+1)
	return n + 1, nil
}

// switchAndDie makes a switch to the phase by hand, and does not survive it.
func (a assignment) switchAndDie() error {
	ctx, cancel := context.WithTimeout(context.Background(), a.Patience)
	defer cancel()
	var stores [2]backend.Driver
	calls := 0
	for i, url := range []string{a.From, a.To} {
		d, err := backend.Open(ctx, url, nil)
		if err != nil {
			return err
		}
		stores[i] = core.Composite{Caller: mortal{core.Of(d).(core.Gater), &calls, a.DieAt}}
	}
	p, err := migrate.PairOf("walk", moved, stores[0], stores[1])
	if err == nil {
		err = p.Open(ctx, a.Phase)
	}
	if err == nil {
		fmt.Println("survived", calls)
	}
	return err
}

// mortal is a store whose client dies before its call number at.
type mortal struct {
	core.Gater
	calls *int
	at    int
}

func (m mortal) step() {
	if *m.calls++; *m.calls == m.at {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

func (m mortal) Gates(ctx context.Context) ([]backend.Gate, error) {
	m.step()
	return m.Gater.Gates(ctx)
}

func (m mortal) Clients(ctx context.Context, move string) ([]backend.Client, error) {
	m.step()
	return m.Gater.Clients(ctx, move)
}

func (m mortal) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	m.step()
	return m.Gater.SetGate(ctx, g, was)
}

func (m mortal) Undrained(ctx context.Context, g backend.Gate) ([]backend.Info, error) {
	m.step()
	return m.Gater.Undrained(ctx, g)
}

func (m mortal) Source(ctx context.Context) (backend.Token, error) {
	m.step()
	return m.Gater.Source(ctx)
}

func (m mortal) Raise(ctx context.Context, floor backend.Token) error {
	m.step()
	return m.Gater.Raise(ctx, floor)
}
