package cli

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// The exit codes are the codes of sysexits.h and of the shell.
const (
	ExitOK          = 0
	ExitNo          = 1   // the answer is no: found leaks, free, not confirmed
	ExitUsage       = 64  // EX_USAGE: usage or configuration
	ExitUnavailable = 69  // EX_UNAVAILABLE: the store
	ExitLost        = 70  // EX_SOFTWARE: the lease was lost
	ExitNotObtained = 75  // EX_TEMPFAIL: try again later
	ExitCannotRun   = 126 // as the shell
	ExitNotFound    = 127
	ExitSignal      = 128 // plus the signal's number
)

// failure is an error with its exit code.
type failure struct {
	code  int
	err   error // nil: there is nothing to say
	usage bool  // the usage is shown with it
}

// Error returns the cause.
func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.err.Error()
}

// Unwrap returns the cause.
func (f *failure) Unwrap() error { return f.err }

// WithCode makes an error with its exit code.
func WithCode(code int, format string, args ...any) error {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// Exit returns the error that only sets the exit code; nil for 0.
func Exit(code int) error {
	if code == ExitOK {
		return nil
	}
	return &failure{code: code}
}

// Usagef makes the error of a wrong command line: the usage is shown with it.
func Usagef(format string, args ...any) error {
	return &failure{ExitUsage, fmt.Errorf(format, args...), true}
}

// signalled returns the error of a command that a signal ended.
func signalled(sig syscall.Signal) error {
	return WithCode(ExitSignal+int(sig), "ended by signal: %s", sig)
}

// Unanswered returns a driver's error with the sentinel that the exit code needs: an error that another
// try may mend becomes ErrUnavailable.
func Unanswered(err error) error {
	if backend.Final(err) {
		return err
	}
	return backend.Unavailable(err)
}

// Code returns the exit code of an error.
func (a *App) Code(err error) int { return a.failure(err).code }

func (a *App) failure(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	switch {
	case !a.began: // then every error is cobra's about the command line
		return &failure{ExitUsage, err, true}
	case errors.Is(err, fencelock.ErrInvalid), errors.Is(err, fencelock.ErrUnsupported):
		return &failure{code: ExitUsage, err: err}
	}
	return &failure{code: ExitUnavailable, err: err}
}
