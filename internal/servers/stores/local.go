package stores

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Local runs programs of this machine as child processes. Each has a process group of its own and, on Linux, dies with
// this process.
type Local struct{}

// Kind is "local".
func (Local) Kind() string { return "local" }

// Prepare describes a child process. It is not started yet.
func (Local) Prepare(_ context.Context, s Spec) (Process, error) {
	program, err := exec.LookPath(s.Args[0])
	if err != nil {
		return nil, fmt.Errorf("%s: program %s is %w", s.Store, s.Args[0], ErrMissing)
	}
	return &process{
		program: program,
		spec:    s,
		log:     filepath.Join(s.Dir, s.Name+".log"),
		exited:  make(chan struct{}),
	}, nil
}

// process is a child process that can be started again.
type process struct {
	program string
	spec    Spec
	log     string
	cmd     *exec.Cmd     // nil when it is not running
	exited  chan struct{} // of the present run
}

// Start starts the program and returns when it has been executed; it may not be ready yet.
func (p *process) Start(ctx context.Context) error {
	if p.running() {
		return fmt.Errorf("%s is running already", p.spec.Name)
	}
	if err := p.setup(ctx); err != nil {
		return err
	}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	cmd := p.command(p.program, p.spec.Args[1:])
	cmd.Stdout, cmd.Stderr = log, log
	started, exited := make(chan error, 1), make(chan struct{})
	// The kernel sends the parent-death signal when the *thread* that forked ends, so this goroutine keeps its thread
	// to itself until the program has ended. Kill waits for exited.
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		defer close(exited)
		defer log.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in its log, and a killed one is no error
		}
	}()
	if err := <-started; err != nil {
		<-exited
		return err
	}
	p.cmd, p.exited = cmd, exited
	return nil
}

// setup fills an empty data folder.
func (p *process) setup(ctx context.Context) error {
	if p.spec.Data == "" {
		return nil
	}
	if err := makeDir(p.spec.Data, p.spec.User); err != nil {
		return err
	}
	entries, err := os.ReadDir(p.spec.Data)
	if err != nil || len(entries) > 0 || p.spec.Setup == nil {
		return err
	}
	return p.spec.Setup(ctx)
}

func (p *process) command(name string, args []string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Dir = p.spec.Dir
	cmd.Env = append(os.Environ(), p.spec.Env...)
	cmd.SysProcAttr = attributes(p.spec.User)
	return cmd
}

func (p *process) running() bool {
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Stop asks the program to end, and kills it if it has not ended in time.
func (p *process) Stop(ctx context.Context) error {
	if !p.running() {
		return p.Kill()
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	// A paused program would not see the request.
	ask := cmp.Or(p.spec.StopSignal, syscall.SIGTERM)
	err := errors.Join(p.Resume(), signalProcess(p.cmd.Process.Pid, ask))
	select {
	case <-p.exited:
	case <-ctx.Done():
	}
	return errors.Join(err, p.Kill())
}

// Kill ends the program and whatever it started, and returns when they are gone.
func (p *process) Kill() error {
	if p.cmd == nil {
		return nil
	}
	group := p.cmd.Process.Pid
	children, err := p.signalAll(syscall.SIGKILL)
	<-p.exited
	p.cmd = nil
	// A new server would meet the shared memory of the old one's children, and its disk could not be taken away.
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(err,
		await(ctx, nil, func(context.Context) error {
			return errors.Join(areGone(children), isGroupGone(group))
		}))
}

// Pause stops the program and returns when the kernel has stopped every one of its processes.
func (p *process) Pause() error {
	if !p.running() {
		return fmt.Errorf("%s is not running", p.spec.Name)
	}
	if _, err := p.signalAll(pauseSignal); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return await(ctx, p.exited, func(context.Context) error {
		pid := p.cmd.Process.Pid
		return arePaused(append(childrenOf(pid), pid)...)
	})
}

// Resume lets a paused program go on.
func (p *process) Resume() error {
	if !p.running() {
		return fmt.Errorf("%s is not running", p.spec.Name)
	}
	_, err := p.signalAll(resumeSignal)
	return err
}

// signalAll signals the process group and, where children leave it, the children, which it returns.
func (p *process) signalAll(sig syscall.Signal) (children []int, err error) {
	pid := p.cmd.Process.Pid
	if p.spec.Reap && p.running() {
		// A parent has no further children once it stands still.
		err = p.halt(pid)
		children = childrenOf(pid)
	}
	for _, child := range children {
		err = errors.Join(err, signalProcess(child, sig))
	}
	return children, errors.Join(err, signalGroup(pid, sig))
}

// halt stops the first process of the program, and returns when it stands still or has ended. Where
// it cannot be stopped, its children are not known either.
func (p *process) halt(pid int) error {
	if signalProcess(pid, pauseSignal) != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return await(ctx, nil, func(context.Context) error { return arePaused(pid) })
}

// Wipe removes the data.
func (p *process) Wipe() error {
	if p.running() {
		return fmt.Errorf("%s is running: its data stays", p.spec.Name)
	}
	if p.spec.Data == "" {
		return nil
	}
	return os.RemoveAll(p.spec.Data)
}

// Exited is closed when the program has ended.
func (p *process) Exited() <-chan struct{} { return p.exited }

// Tail returns the end of the log.
func (p *process) Tail() string { return tail(p.log, 2000) }

// Close kills the program.
func (p *process) Close() error { return p.Kill() }

// tail returns the last n bytes of a file, or why they cannot be read.
func tail(name string, n int64) string {
	f, err := os.Open(name)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	if st, err := f.Stat(); err == nil && st.Size() > n {
		if _, err := f.Seek(-n, io.SeekEnd); err != nil {
			return err.Error()
		}
	}
	b, err := io.ReadAll(f)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// run runs a command to its end and returns its output with the error.
func run(ctx context.Context, dir string, user *User, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir = dir
	// No parent-death signal: the thread may end before the command does, and the command ends with this call anyway.
	cmd.SysProcAttr = credentials(user)
	cmd.WaitDelay = time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(args[0]), err, out)
	}
	return nil
}

// makeDir makes a folder that belongs to the user.
func makeDir(dir string, user *User) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if user == nil {
		return nil
	}
	return os.Chown(dir, user.UID, user.GID)
}
