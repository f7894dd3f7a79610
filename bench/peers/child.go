package peers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// envChild makes a program that calls [Child] a process of one library.
const envChild = "FENCELOCK_PEERS_CHILD"

// An order is what a parent asks of a child; one line of JSON, answered by one.
type order struct {
	Op      string // open, crowd, lock, unlock, hold, meter
	Library string
	At      place
	Name    string
	N       int // goroutines or leases
	For     time.Duration
	Section time.Duration
}

// An answer is what came of an order.
type answer struct {
	Err   string
	When  int64 // of the grant, or of the call that freed: CLOCK_MONOTONIC, which all processes of a machine share
	Crowd crowd
	Use   use
}

// use is what a process uses.
type use struct {
	CPU        time.Duration
	Bytes      uint64 // heap and stacks in use after a collection
	Goroutines int
}

// Child serves a parent until its input ends and does not return, if this process was started by one; else it returns at once.
// A program that calls [Run] calls it first.
func Child() {
	if os.Getenv(envChild) == "" {
		return
	}
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	var w worker
	for in.Scan() {
		var o order
		err := json.Unmarshal(in.Bytes(), &o)
		var a answer
		if err == nil {
			a, err = w.do(context.Background(), o)
		}
		if err != nil {
			a.Err = err.Error()
		}
		if out.Encode(a) != nil {
			break
		}
	}
	w.close()
	os.Exit(0)
}

// worker is a child's state.
type worker struct {
	l     locker
	ready bool
	all   []mutex // of the goroutines, all of one name
}

func (w *worker) close() {
	if w.ready {
		w.l.close()
	}
}

// orderMost bounds an order beside the time that it says and the leases that it takes.
const orderMost = 20 * time.Second

func (w *worker) do(ctx context.Context, o order) (answer, error) {
	most := o.For + orderMost
	if o.Op == "hold" {
		most += time.Duration(o.N) * 10 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var a answer
	switch o.Op {
	case "open":
		lib, err := find(o.Library)
		if err != nil {
			return a, err
		}
		w.l, err = lib.open(context.WithoutCancel(ctx), o.At)
		w.ready = err == nil
		for range o.N {
			if err != nil {
				return a, err
			}
			var m mutex
			m, err = w.l.mutex(ctx, o.Name)
			w.all = append(w.all, m)
		}
		return a, err
	case "crowd":
		var err error
		a.Crowd, err = gatherCrowd(ctx, w.all, o.For, o.Section)
		return a, err
	case "lock":
		err := w.all[0].lock(ctx)
		a.When = monotonic()
		return a, err
	case "unlock":
		a.When = monotonic()
		return a, w.all[0].unlock(ctx)
	case "hold":
		return a, w.hold(ctx, o.N)
	case "meter":
		a.Use = used()
		return a, nil
	}
	return a, fmt.Errorf("no order %q", o.Op)
}

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every system that this is for has it
	}
	return t.Nano()
}

func used() use {
	spent := cpuTime() // before the collection
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return use{CPU: spent, Bytes: m.HeapAlloc + m.StackInuse, Goroutines: runtime.NumGoroutine()}
}

func cpuTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err) // not with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// child is the parent's side of a process.
type child struct {
	cmd    *exec.Cmd
	in     *json.Encoder
	answer chan answer
	stderr bytes.Buffer
	end    func() error
}

// start starts a process of a library with n goroutines on name.
func start(lib Library, at place, name string, n int) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self), answer: make(chan answer, 1)}
	c.cmd.Env = append(os.Environ(), envChild+"=1")
	c.cmd.Stderr = &c.stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	c.in = json.NewEncoder(in)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer close(c.answer)
		for d := json.NewDecoder(out); ; {
			var a answer
			if d.Decode(&a) != nil {
				return
			}
			c.answer <- a
		}
	}()
	c.end = func() error {
		_ = in.Close() // which ends it
		late := time.AfterFunc(orderMost, func() { _ = c.cmd.Process.Kill() })
		defer late.Stop()
		<-read
		return c.cmd.Wait()
	}
	if err := c.send(order{Op: "open", Library: lib.Name, At: at, Name: name, N: n}); err != nil {
		return nil, errors.Join(err, c.end())
	}
	if _, err := c.receive(); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", lib.Name, err), c.end())
	}
	return c, nil
}

func (c *child) send(o order) error { return c.in.Encode(o) }

func (c *child) receive() (answer, error) {
	a, ok := <-c.answer
	switch {
	case !ok:
		return a, fmt.Errorf("the process has ended: %s", strings.TrimSpace(c.stderr.String()))
	case a.Err != "":
		return a, errors.New(a.Err)
	}
	return a, nil
}

func (c *child) ask(o order) (answer, error) {
	if err := c.send(o); err != nil {
		return answer{}, err
	}
	return c.receive()
}
