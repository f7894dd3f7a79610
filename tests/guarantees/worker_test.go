//go:build linux

package guarantees_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/conformance/history"
)

// workerEnv makes the test binary a worker: its assignment in JSON.
const workerEnv = "FENCELOCK_FAULTS_WORKER"

// assignment is what a worker is told when it starts.
type assignment struct {
	URL  string // with the prefix; through the worker's own proxies
	Name string
	Dir  string // for its history and the guarded counters
	TTL  time.Duration
	Tx   bool // it writes in the lease's transaction, not to the guarded counter
	load
}

// load is how much a worker does.
type load struct {
	Names      int           // locks of a round
	Shared     int           // names that are read and written, and as many of permits, where the backend has them
	Goroutines int           // that lock
	Think      time.Duration // between two locks of one of them, at the most
}

func init() {
	raw := os.Getenv(workerEnv)
	if raw == "" {
		return
	}
	logging.Disable()
	signal.Ignore(os.Interrupt, syscall.SIGTERM) // its parent ends it
	var a assignment
	err := json.Unmarshal([]byte(raw), &a)
	if err == nil {
		err = a.serve()
	}
	if err != nil {
		fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		os.Exit(1)
	}
	os.Exit(0)
}

// keepTTLs is how many times as long as others the leases are that keep takes.
const keepTTLs = 4

// worker is a process that locks.
type worker struct {
	assignment
	l      *fencelock.Locker
	grants atomic.Int64
	held   *fencelock.Lease // by hold
	hold   *history.Hold

	stop    context.CancelFunc // of the load
	running sync.WaitGroup
	out     *os.File
	logs    []*history.Log
}

// serve obeys the commands on stdin, one a line, and answers each with a line, until stdin ends.
func (a assignment) serve() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := fencelock.Open(ctx, a.URL, fencelock.WithTTL(a.TTL), fencelock.WithOwner(a.Name))
	for errors.Is(err, fencelock.ErrUnavailable) && ctx.Err() == nil {
		l, err = fencelock.Open(ctx, a.URL, fencelock.WithTTL(a.TTL), fencelock.WithOwner(a.Name))
	}
	if err != nil {
		return err
	}
	w := &worker{assignment: a, l: l}
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		answer, err := w.obey(words[0], words[1:])
		if err != nil {
			answer = "error " + strings.ReplaceAll(err.Error(), "\n", " ")
		}
		fmt.Println(answer)
		if words[0] == "quit" {
			return l.Close()
		}
	}
	return io.ErrUnexpectedEOF // its parent is gone
}

func (w *worker) obey(verb string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	switch verb {
	case "load": // round names…: the first is held for long
		return "ok", w.begin(args[0], args[1:])
	case "halt":
		return "halted", w.halt()
	case "counts":
		return fmt.Sprint(w.grants.Load()), nil
	case "hold", "keep", "take":
		// a name, until drop or until the process ends; keep: with a long lease; take: if it comes
		// soon
		var opts []fencelock.Option
		switch verb {
		case "keep":
			opts = append(opts, fencelock.WithTTL(keepTTLs*w.TTL))
		case "take":
			ctx, cancel = context.WithTimeout(ctx, 2*w.TTL)
			defer cancel()
		}
		called := history.Now()
		le, err := w.l.Mutex(args[0], opts...).Lock(ctx)
		// another leader is yet to be chosen
		for verb == "take" && errors.Is(err, fencelock.ErrUnavailable) && ctx.Err() == nil {
			le, err = w.l.Mutex(args[0], opts...).Lock(ctx)
		}
		if verb == "take" && err != nil && ctx.Err() != nil {
			return "none", nil
		}
		if err != nil {
			return "", err
		}
		w.held, w.hold = le, w.logs[0].Hold(le, called)
		return "held", nil
	case "drop": // if it has not lost it
		w.hold.End()
		called := history.Now()
		err := w.held.Unlock(ctx)
		w.logs[0].Freed(w.held.Name(), w.held.Token(), called, resultOf(err))
		return "dropped", nil
	case "renewal": // returns just after the next one
		for old := w.held.Deadline(); w.held.Deadline().Equal(old); {
			if err := w.held.Err(); err != nil {
				return "", err
			}
			time.Sleep(200 * time.Microsecond) // the pause of a poll that the lease's end bounds
		}
		return "renewed", nil
	case "still": // whether it trusts what it was told to hold
		if w.held.Err() != nil {
			return "lost", nil
		}
		return "held", nil
	case "quit":
		return "bye", nil
	case "try": // what an attempt says
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		le, err := w.l.Mutex(args[0]).TryLock(ctx)
		switch {
		case err == nil:
			_ = le.Unlock(ctx) // the store may go in between; then the lease runs out
			return "granted", nil
		case errors.Is(err, fencelock.ErrUnavailable):
			return "unavailable", nil
		case errors.Is(err, fencelock.ErrLocked):
			return "locked", nil
		}
		return "", err
	}
	return "", fmt.Errorf("unknown command %q", verb)
}

// begin begins to lock names.
func (w *worker) begin(round string, names []string) error {
	var err error
	w.out, err = os.OpenFile(filepath.Join(w.Dir, round+"-"+w.Name+".jsonl"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop, w.logs = stop, nil
	for i := range w.Goroutines {
		w.logs = append(w.logs, history.NewLog(w.out, fmt.Sprintf("%s.%d", w.Name, i), ""))
	}
	w.running.Go(func() { w.watch(ctx) })
	for i, log := range w.logs {
		w.running.Go(func() {
			for ctx.Err() == nil {
				// One of them asks for what is held for long, every other time: the others would
				// all stand in that queue. Of the other names the first are asked for most.
				n := 1 + min(rand.IntN(len(names)-1), rand.IntN(len(names)-1))
				if i == 0 && rand.IntN(2) == 0 {
					n = 0
				}
				if err := w.cycle(ctx, log, names[n], n == 0); err != nil {
					time.Sleep(10 * time.Millisecond) // so that an outage is no busy loop
				}
				time.Sleep(rand.N(w.Think)) // a program does something else
			}
		})
	}
	return nil
}

// watch writes down when the machine has not run this process for a while: then a grant may be told late.
func (w *worker) watch(ctx context.Context) {
	const nap = 10 * time.Millisecond
	for last := history.Now(); ctx.Err() == nil; {
		time.Sleep(nap)
		now := history.Now()
		if now > last.After(10*nap) {
			for _, log := range w.logs {
				log.Write(history.Event{Kind: history.Stopped, At: last, Until: now})
			}
		}
		last = now
	}
}

// halt ends the load: what is under way is finished.
func (w *worker) halt() error {
	w.stop()
	w.running.Wait()
	err := w.out.Close()
	for _, log := range w.logs {
		err = errors.Join(err, log.Err())
	}
	return err
}

// cycle locks a name, adds to what it protects and unlocks it. It never looks whether it still has the lock: only the
// resource stops it.
func (w *worker) cycle(ctx context.Context, log *history.Log, name string, long bool) error {
	lock, try, writes, limit := w.way(name)
	if rand.IntN(3) == 0 {
		lock = try
	}
	waiting, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	called := history.Now()
	le, err := lock(waiting)
	if err != nil {
		if waiting.Err() != nil || !errors.Is(err, fencelock.ErrLocked) {
			log.Write(history.Event{
				Kind: history.Asked, Name: name, Called: called, At: history.Now(),
				Result: history.Unclear,
			})
		}
		return err
	}
	w.grants.Add(1)
	h := log.HoldOf(le, called, limit)
	pause := time.Duration(rand.IntN(3)) * time.Millisecond
	if long {
		pause = w.TTL/8 + rand.N(w.TTL/2)
	}
	var value int64
	switch {
	case !writes:
		if le.Mode() == fencelock.Reader {
			_, err = counterOf(w.Dir, name).Read(le.Token()) // shuts out the writers that it has overtaken
		}
		time.Sleep(pause)
	case w.Tx:
		log.Wanted(name, le.Token())
		value, err = addInTx(le, pause)
	default:
		value, err = w.add(log, le, pause)
	}
	h.End()
	bounded, end := context.WithTimeout(context.Background(), 5*time.Second)
	defer end()
	called = history.Now()
	unlocked := le.Unlock(bounded)
	log.Freed(name, le.Token(), called, resultOf(unlocked))
	if w.Tx && writes && err == nil && unlocked == nil { // committed
		log.Added(name, le.Token(), value)
	}
	return errors.Join(err, unlocked)
}

// The beginnings of the last part of a name that several may hold.
const (
	ofReaders = "/r"
	ofPermits = "/p"
	permits   = 3 // of each
)

// way is how a name is locked and tried this time, whether to add to its counter, and how many permits it has.
func (w *worker) way(name string) (lock, try func(context.Context) (*fencelock.Lease, error), writes bool, limit int) {
	switch {
	case strings.Contains(name, ofPermits):
		s := w.l.Semaphore(name, permits)
		return s.Acquire, s.TryAcquire, false, permits
	case strings.Contains(name, ofReaders) && rand.IntN(4) > 0:
		m := w.l.RWMutex(name)
		return m.RLock, m.TryRLock, false, 0
	}
	m := w.l.Mutex(name)
	return m.Lock, m.TryLock, true, 0
}

func resultOf(err error) history.Result {
	switch {
	case err == nil:
		return history.OK
	case errors.Is(err, fencelock.ErrLost), errors.Is(err, fencelock.ErrStale):
		return history.Refused
	}
	return history.Unclear
}

// add adds one to the guarded counter of a lease's name. Both the read and the write show the token.
func (w *worker) add(log *history.Log, le *fencelock.Lease, pause time.Duration) (int64, error) {
	c := counterOf(w.Dir, le.Name())
	log.Wanted(le.Name(), le.Token())
	called := history.Now()
	n, err := c.Read(le.Token())
	log.Shown(le.Name(), le.Token(), called, resultOf(err))
	if err != nil {
		return 0, err
	}
	time.Sleep(pause)
	called = history.Now()
	err = c.Write(le.Token(), n+1)
	log.Shown(le.Name(), le.Token(), called, resultOf(err))
	if err != nil {
		return 0, err
	}
	log.Added(le.Name(), le.Token(), n+1)
	return n + 1, nil
}

func counterOf(dir, name string) history.Counter {
	return history.Counter{Path: filepath.Join(dir, "counter-"+strings.ReplaceAll(name, "/", "-"))}
}
