package rights

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// patience is what a call may take on a server that refuses it. An outage is ridden out for less.
const patience = 10 * time.Second

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// commands returns the lines of the document's one block of code that begins with the line first, without that line.
func commands(t *testing.T, first string) []string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/security.md")
	must(t, err)
	for _, block := range regexp.MustCompile("(?s)```[a-z]*\n(.*?)```").FindAllStringSubmatch(string(doc), -1) {
		if rest, ok := strings.CutPrefix(block[1], first+"\n"); ok {
			return strings.Split(strings.TrimSpace(rest), "\n")
		}
	}
	t.Fatalf("docs/security.md has no block that begins with %q", first)
	return nil
}

// a task is one thing that is done with the rights.
type task struct {
	what string
	do   func(ctx context.Context, w *work) error
	slow bool // and asks for no right that others do not ask for too
}

// work is what the tasks share: two clients, and a driver of its own for what a migration does.
type work struct {
	a, b   *fencelock.Locker
	d      core.Gater
	name   string
	held   *fencelock.Lease
	waiter chan got

	waiting context.Context // a wait outlives its task
}

type got struct {
	le  *fencelock.Lease
	err error
}

// locking is what a program and an operator do. The TTL is short, so that the background renews too.
var locking = []task{
	{what: "lock", do: func(ctx context.Context, w *work) (err error) {
		w.held, err = w.a.Mutex(w.name).Lock(ctx)
		return err
	}},
	{what: "try of another", do: func(ctx context.Context, w *work) error {
		le, err := w.b.Mutex(w.name).TryLock(ctx)
		if err == nil {
			return errors.Join(
				fmt.Errorf("token %d beside token %d: two holders", le.Token(), w.held.Token()),
				le.Unlock(ctx))
		}
		if errors.Is(err, fencelock.ErrLocked) {
			return nil
		}
		return err
	}},
	{what: "wait", do: func(ctx context.Context, w *work) error {
		w.waiter = make(chan got, 1)
		go func() {
			le, err := w.b.Mutex(w.name).Lock(w.waiting)
			w.waiter <- got{le, err}
		}()
		for {
			select {
			case g := <-w.waiter:
				if g.err == nil && w.held.Err() == nil {
					return errors.Join(errors.New("two holders"), g.le.Unlock(ctx))
				}
				return errors.Join(g.err, w.held.Err())
			case <-time.After(20 * time.Millisecond):
			}
			if info, err := w.a.Inspect(ctx, w.name); err != nil || info.Waiters != 0 {
				return err
			}
		}
	}},
	{what: "renew", do: func(ctx context.Context, w *work) error { return w.held.Renew(ctx) }},
	{what: "renewal in the background", do: func(ctx context.Context, w *work) error {
		for was := w.held.Deadline(); !w.held.Deadline().After(was); {
			select {
			case <-w.held.Done():
				return w.held.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
		return nil
	}, slow: true},
	{what: "inspect", do: func(ctx context.Context, w *work) error {
		info, err := w.b.Inspect(ctx, w.name)
		if err == nil && (!info.Held || info.Token != w.held.Token()) {
			err = fmt.Errorf("got %+v, want it held with token %d", info, w.held.Token())
		}
		return err
	}},
	{what: "list", do: func(ctx context.Context, w *work) error {
		n := 0
		for info, err := range w.b.List(ctx, "") {
			if err != nil {
				return err
			}
			if info.Name == w.name {
				n++
			}
		}
		if n != 1 {
			return fmt.Errorf("listed %d times, want once", n)
		}
		return nil
	}},
	{what: "unlock", do: func(ctx context.Context, w *work) error { return w.held.Unlock(ctx) }},
	{what: "hand over", do: func(ctx context.Context, w *work) error {
		select {
		case g := <-w.waiter:
			w.held = g.le
			return g.err
		case <-ctx.Done():
			return errors.New("the waiter was not woken")
		}
	}},
	{what: "break", do: func(ctx context.Context, w *work) error {
		if err := w.a.Break(ctx, w.name); err != nil {
			return err
		}
		select {
		case <-w.held.Done():
			return nil
		case <-ctx.Done():
			return errors.New("the holder was not told")
		}
	}},
	{what: "cancelled wait", do: func(ctx context.Context, w *work) error {
		le, err := w.a.Mutex(w.name).Lock(ctx)
		if err != nil {
			return err
		}
		impatient, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if _, err := w.b.Mutex(w.name).Lock(impatient); !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		return le.Unlock(ctx)
	}},
	{what: "read together", do: func(ctx context.Context, w *work) error {
		if !w.a.Traits().Readers {
			return nil
		}
		for _, l := range []*fencelock.Locker{w.a, w.b} {
			le, err := l.RWMutex(w.name).RLock(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = le.Unlock(ctx) }()
			if err := le.Renew(ctx); err != nil {
				return err
			}
		}
		return nil
	}},
	{what: "abandon", do: func(ctx context.Context, w *work) error {
		return w.d.Abandon(ctx, w.request("x", "", ""))
	}},
	{what: "release again", do: func(ctx context.Context, w *work) error {
		r := w.request("x", "", "")
		g, err := w.d.Acquire(ctx, r)
		if err != nil {
			return err
		}
		h := &core.Hold{Request: r, Grant: g}
		for range 2 {
			if err := w.d.Release(ctx, h); err != nil {
				return err
			}
		}
		return nil
	}},
	{what: "raise", do: func(ctx context.Context, w *work) error {
		le, err := w.a.Mutex(w.name, fencelock.WithFloor(w.held.Token()+1000)).Lock(ctx)
		if err != nil {
			return err
		}
		return le.Unlock(ctx)
	}},
}

// remembering is what fills the list of the releases that are remembered, of which the oldest are cut off then.
var remembering = []task{
	{what: "many releases", do: func(ctx context.Context, w *work) error {
		for range 170 {
			if err := w.a.Do(ctx, w.name, func(context.Context, *fencelock.Lease) error { return nil }); err != nil {
				return err
			}
		}
		return nil
	}},
}

// moving is what a client does that takes part in a migration, and what runs one.
var moving = []task{
	{what: "close a gate", do: func(ctx context.Context, w *work) error {
		return w.d.SetGate(ctx, w.gate(1, backend.GateBoth), 0)
	}},
	{what: "be refused by a gate", do: func(ctx context.Context, w *work) error {
		_, err := w.a.Mutex("moving/x").TryLock(ctx)
		if errors.Is(err, fencelock.ErrUnsupported) {
			return nil
		}
		return fmt.Errorf("got %w, want to be refused by the gate", err)
	}},
	{what: "pass a gate", do: func(ctx context.Context, w *work) error {
		r := w.request("moving/x", "m", backend.PhaseBoth)
		g, err := w.d.Acquire(ctx, r)
		if err != nil {
			return err
		}
		h := &core.Hold{Request: r, Grant: g}
		if err := w.d.RaiseHeld(ctx, h, g.Token+1); err != nil {
			return err
		}
		return w.d.Release(ctx, h)
	}},
	{what: "drain", do: func(ctx context.Context, w *work) error {
		_, err := w.d.Undrained(ctx, w.gate(1, backend.GateBoth))
		return err
	}},
	{what: "source", do: func(ctx context.Context, w *work) error {
		n, err := w.d.Source(ctx)
		if err != nil {
			return err
		}
		return w.d.Raise(ctx, n+1)
	}},
	{what: "gates", do: func(ctx context.Context, w *work) error {
		_, err := w.d.Gates(ctx)
		return err
	}},
	{what: "report", do: func(ctx context.Context, w *work) error {
		c := backend.Client{ID: "c", Move: "m"}
		if err := w.d.Report(ctx, c, time.Minute); err != nil {
			return err
		}
		if _, err := w.d.Clients(ctx, "m"); err != nil {
			return err
		}
		return w.d.Withdraw(ctx, c)
	}},
	{what: "open a gate", do: func(ctx context.Context, w *work) error {
		return w.d.SetGate(ctx, w.gate(2, backend.GateOpen), 1)
	}},
}

func (*work) request(name, move string, phase backend.Phase) *backend.Request {
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // never fails
	return &backend.Request{
		Name: name, Nonce: hex.EncodeToString(nonce[:]), Owner: "o", TTL: 3 * time.Second,
		Wait: true, Move: move, Phase: phase, Lost: func(error) {},
	}
}

func (w *work) gate(epoch int64, s backend.GateState) backend.Gate {
	return backend.Gate{Move: "m", Scope: backend.Scope{{Match: "moving/*"}}, State: s, Epoch: epoch}
}

// run opens the URL and does the tasks, slow ones too if all is set, until one fails: then it
// returns which, and its error.
func run(t *testing.T, url string, tasks []task, all bool) (what string, err error) {
	t.Helper()
	w := &work{name: "x"}
	what = "open"
	defer func() {
		for _, l := range []*fencelock.Locker{w.a, w.b} {
			if l != nil {
				_ = l.Close() // it may lack the rights to free what it holds
			}
		}
		if w.d != nil {
			_ = w.d.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, l := range []**fencelock.Locker{&w.a, &w.b} {
		if *l, err = fencelock.Open(ctx, url, fencelock.WithTTL(9*time.Second)); err != nil {
			return what, err
		}
	}
	d, err := backend.Open(ctx, url, nil)
	if err != nil {
		return what, err
	}
	w.d = core.Of(d).(core.Gater)
	w.waiting, cancel = context.WithCancel(t.Context())
	defer cancel()
	for _, task := range tasks {
		if task.slow && !all {
			continue
		}
		ctx, cancel := context.WithTimeout(w.waiting, patience)
		began := time.Now()
		err := task.do(ctx, w)
		cancel()
		if took := time.Since(began); took > patience {
			t.Errorf("%s: took %v", task.what, took)
		}
		if err != nil {
			return task.what, err
		}
	}
	return "", nil
}

// works fails the test unless every task can be done.
func works(t *testing.T, url string, tasks ...[]task) {
	t.Helper()
	for _, tasks := range tasks {
		if what, err := run(t, url, tasks, true); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// refused fails the test unless something is refused, for want of rights.
func refused(t *testing.T, url string, tasks ...[]task) {
	t.Helper()
	for _, tasks := range tasks {
		what, err := run(t, url, tasks, false)
		if err == nil {
			continue
		}
		isRefusal(t, what, err)
		return
	}
	t.Error("everything can be done without it: it is not needed")
}

func isRefusal(t *testing.T, what string, err error) {
	t.Helper()
	t.Logf("%s: %v", what, err)
	// A script that may not read a key can take it for one that holds what it cannot read.
	if !errors.Is(err, fencelock.ErrInvalid) ||
		!regexp.MustCompile("rights|refuses|holds something else|another type").
			MatchString(err.Error()) {
		t.Errorf("%s: got %v, want ErrInvalid that speaks of rights", what, err)
	}
}
