package stores

import (
	"context"
	"errors"
	"syscall"
)

// ErrMissing is matched by the error of a [Launcher] that has no such program or image. The message
// says what to install.
var ErrMissing = errors.New("not available here")

// Launcher runs programs: on this machine or in containers. Its methods may be called by many goroutines at once.
type Launcher interface {
	// Kind is "local" or "container".
	Kind() string
	// Prepare makes what s describes without starting it. The error matches ErrMissing if the program or the image is
	// not there.
	Prepare(ctx context.Context, s Spec) (Process, error)
}

// Spec says what to run.
type Spec struct {
	Store string   // the backend: "redis", "etcd", "zookeeper", "postgres"
	Name  string   // of this process among its peers; names its log
	Args  []string // the command line; Args[0] is the program as [Local] knows it
	Image []string // the arguments for an image of this store; nil means Args
	Env   []string // additions to the environment, "KEY=value"
	Dir   string   // the process's own folder, which exists: configuration and log
	Data  string   // the data folder inside Dir, emptied by Wipe
	Ports []int    // of the loopback address, on which it listens
	User  *User    // who runs it; nil means the caller
	Reap  bool     // children leave the process group and must be found and stopped one by one
	// Setup fills an empty Data before the program starts; nil if the program does it itself. A container does not call
	// it: the command line for images must do the same.
	Setup func(ctx context.Context) error
	// StopSignal asks the program to end; 0 means SIGTERM.
	StopSignal syscall.Signal
}

// User is an account of this machine.
type User struct{ UID, GID int }

// Process is one program that can be started again and again. Its methods are not for concurrent use, but Exited and
// Tail are.
type Process interface {
	Start(ctx context.Context) error
	Stop(ctx context.Context) error // asks, then kills; nil if it is not running; returns when it is gone
	Kill() error                    // SIGKILL; nil if it is not running; returns when it is gone
	Pause() error                   // SIGSTOP; returns when it has stopped
	Resume() error                  // SIGCONT
	Wipe() error                    // removes the data; only while it is not running
	Exited() <-chan struct{}        // closed when the running program has ended
	Tail() string                   // the end of its log
	Close() error                   // kills it and frees what it holds
}
