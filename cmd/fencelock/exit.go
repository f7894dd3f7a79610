package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/fencelock/fencelock"
)

// The exit codes: those of sysexits.h and of the shell.
const (
	exitOK          = 0
	exitNo          = 1   // the answer is no: found leaks, free, not confirmed
	exitUsage       = 64  // EX_USAGE: usage or configuration
	exitUnavailable = 69  // EX_UNAVAILABLE: the store
	exitLost        = 70  // EX_SOFTWARE: the lease was lost
	exitNotObtained = 75  // EX_TEMPFAIL: try again later
	exitCannotRun   = 126 // as the shell
	exitNotFound    = 127
	exitSignal      = 128 // plus the signal's number
)

// exitError is an error with its exit code. Without err nothing is printed.
type exitError struct {
	code int
	err  error
}

// Error returns the cause.
func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

// Unwrap returns the cause.
func (e *exitError) Unwrap() error { return e.err }

// withCode gives an error its exit code.
func withCode(code int, format string, args ...any) error {
	return &exitError{code, fmt.Errorf(format, args...)}
}

// exit returns the error that only sets the exit code; nil for 0.
func exit(code int) error {
	if code == exitOK {
		return nil
	}
	return &exitError{code: code}
}

// isQuiet reports whether err has nothing to say.
func isQuiet(err error) bool {
	e, ok := errors.AsType[*exitError](err)
	return ok && e.err == nil
}

// usageError is a wrong command line: the usage is shown with it.
type usageError struct{ msg string }

// Error returns what was wrong.
func (e *usageError) Error() string { return e.msg }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// signalError says that a signal ended what was going on.
type signalError struct{ sig syscall.Signal }

// Error names the signal.
func (e *signalError) Error() string { return "ended by signal: " + e.sig.String() }

// interrupted returns err, or the signal that ended ctx if err comes of that.
func interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	if sig, ok := errors.AsType[*signalError](context.Cause(ctx)); ok {
		return sig
	}
	return &signalError{syscall.SIGINT}
}

// codeOf returns the exit code of an error, and whether it is one of usage.
func (a *app) codeOf(err error) (code int, usage bool) {
	if e, ok := errors.AsType[*exitError](err); ok {
		return e.code, false
	}
	if e, ok := errors.AsType[*signalError](err); ok {
		return exitSignal + int(e.sig), false
	}
	if _, ok := errors.AsType[*usageError](err); ok || !a.began {
		return exitUsage, true // before a command begins every error is cobra's about the command line
	}
	switch {
	case errors.Is(err, fencelock.ErrInvalid), errors.Is(err, fencelock.ErrUnsupported):
		return exitUsage, false
	case errors.Is(err, fencelock.ErrUnavailable):
		return exitUnavailable, false
	case errors.Is(err, fencelock.ErrLost):
		return exitLost, false
	case errors.Is(err, fencelock.ErrLocked), errors.Is(err, context.DeadlineExceeded):
		return exitNotObtained, false
	case errors.Is(err, os.ErrPermission):
		return exitUsage, false
	}
	return exitUnavailable, false
}
