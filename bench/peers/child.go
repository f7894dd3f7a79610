package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fencelock/fencelock/bench/internal/measure"
)

// envChild makes a program that calls [Child] a process of one library.
const envChild = "FENCELOCK_PEERS_CHILD"

// An Order is what a parent asks of a child. Only package net/rpc and this one use it.
type Order struct {
	Library string
	At      place
	Name    string
	N       int // goroutines or leases
	For     time.Duration
	Section time.Duration
	Anew    bool // each cycle has a new name
}

// Use is what a process uses.
type Use struct {
	CPU        time.Duration
	Bytes      uint64 // heap and stacks in use after a collection
	Goroutines int
}

// pipes are a connection between a parent and a child.
type pipes struct {
	io.ReadCloser
	io.WriteCloser
}

func (p pipes) Close() error { return errors.Join(p.WriteCloser.Close(), p.ReadCloser.Close()) }

// Child serves a parent until its input ends and does not return, if this process was started by
// one; else it returns at once. A program that calls [Run] calls it first.
func Child() {
	if os.Getenv(envChild) == "" {
		return
	}
	var w Worker
	s := rpc.NewServer()
	if err := s.Register(&w); err != nil {
		panic(err) // a method has another form than it must have
	}
	s.ServeCodec(jsonrpc.NewServerCodec(pipes{os.Stdin, os.Stdout}))
	if w.l.close != nil {
		w.l.close()
	}
	os.Exit(0)
}

// Worker is a child. A parent calls its methods by package net/rpc.
type Worker struct {
	l   locker
	all []measure.Mutex // of the goroutines, all of one name
}

const (
	// orderMost bounds an order, beside its time and the leases that it takes.
	orderMost = 20 * time.Second
	// drainMost is how long a goroutine goes on waiting when the time is over.
	drainMost = 5 * time.Second
)

func within(d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d+orderMost)
}

// Open opens a library, with a mutex for each goroutine.
func (w *Worker) Open(o Order, _ *struct{}) error {
	ctx, cancel := within(0)
	defer cancel()
	lib, err := find(o.Library)
	if err != nil {
		return err
	}
	if w.l, err = lib.open(context.WithoutCancel(ctx), o.At); err != nil {
		return err
	}
	for i := range o.N {
		if o.Anew {
			w.all = append(w.all, w.l.anew(fmt.Sprint(o.Name, "-", os.Getpid(), "-", i)))
			continue
		}
		m, err := w.l.mutex(ctx, o.Name)
		if err != nil {
			return err
		}
		w.all = append(w.all, m)
	}
	return nil
}

// Crowd lets all goroutines at the name, or at new names.
func (w *Worker) Crowd(o Order, s *measure.Sample) (err error) {
	ctx, cancel := within(o.For)
	defer cancel()
	*s, err = measure.Crowd(ctx, w.all, measure.Load{
		For: o.For, Section: o.Section, Waits: !o.Anew, Drain: drainMost,
	})
	return err
}

// Lock says when it was granted.
func (w *Worker) Lock(_ struct{}, at *time.Duration) error {
	ctx, cancel := within(0)
	defer cancel()
	err := w.all[0].Lock(ctx)
	*at = monotonic()
	return err
}

// Unlock says when it was called.
func (w *Worker) Unlock(_ struct{}, at *time.Duration) error {
	ctx, cancel := within(0)
	defer cancel()
	*at = monotonic()
	return w.all[0].Unlock(ctx)
}

// Hold locks so many names, which are renewed from then on.
func (w *Worker) Hold(n int, _ *struct{}) error {
	ctx, cancel := within(time.Duration(n) * 10 * time.Millisecond)
	defer cancel()
	return measure.Grab(n, func(i int) error { return w.l.hold(ctx, fmt.Sprint("held-", i)) })
}

// Meter returns what the process uses. It measures memory only if asked, since that needs a collection.
func (w *Worker) Meter(memory bool, u *Use) error {
	u.CPU, _ = measure.CPUTime() // before the collection
	if !memory {
		return nil
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u.Bytes, u.Goroutines = m.HeapAlloc+m.StackInuse, runtime.NumGoroutine()
	return nil
}

// monotonic is a clock that all processes of a machine share.
func monotonic() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // every system that this is for has it
	}
	return time.Duration(t.Nano())
}

// child is the parent's side of a process.
type child struct {
	cmd    *exec.Cmd
	calls  *rpc.Client
	stderr bytes.Buffer
}

// start starts a process of a library.
func start(o Order) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self)}
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
	c.calls = jsonrpc.NewClient(pipes{out, in})
	if err := c.call("Open", o, &struct{}{}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", o.Library, err), c.end())
	}
	return c, nil
}

// end ends the process by the end of its input.
func (c *child) end() error {
	_ = c.calls.Close()
	late := time.AfterFunc(orderMost, func() { _ = c.cmd.Process.Kill() })
	defer late.Stop()
	return c.cmd.Wait()
}

func (c *child) call(method string, in, out any) error {
	return c.result(c.begin(method, in, out))
}

func (c *child) begin(method string, in, out any) *rpc.Call {
	return c.calls.Go("Worker."+method, in, out, make(chan *rpc.Call, 1))
}

func (c *child) result(call *rpc.Call) error {
	err := (<-call.Done).Error
	var told rpc.ServerError
	if err != nil && !errors.As(err, &told) {
		said := strings.TrimSpace(c.stderr.String())
		return fmt.Errorf("the process has ended: %w: %s", err, said)
	}
	return err
}

// Lock implements measure.End.
func (c *child) Lock(context.Context) (at time.Duration, err error) {
	err = c.call("Lock", struct{}{}, &at)
	return at, err
}

// Unlock implements measure.End.
func (c *child) Unlock(context.Context) (at time.Duration, err error) {
	err = c.call("Unlock", struct{}{}, &at)
	return at, err
}
