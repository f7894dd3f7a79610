package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// notify returns the channel of the signals that this program deals with, and
// what ends that. One that was ignored when the program started (nohup, a
// background job of a script) stays so.
func notify() (<-chan os.Signal, func()) {
	sigs := make(chan os.Signal, 16)
	for _, s := range forwarded() {
		if !signal.Ignored(s) {
			signal.Notify(sigs, s)
		}
	}
	return sigs, func() { signal.Stop(sigs) }
}

// untilSignal returns a ctx that the first signal ends, with a *signalError as
// its cause, and a function that leaves later signals to others: once it has returned,
// a signal either has ended ctx or is still in sigs.
func untilSignal(parent context.Context, sigs <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case s := <-sigs:
			cancel(&signalError{number(s)})
		case <-stop:
		}
	}()
	return ctx, func() {
		close(stop)
		<-stopped
		cancel(nil)
	}
}

// number returns the signal as a number.
func number(s os.Signal) syscall.Signal {
	if n, ok := s.(syscall.Signal); ok {
		return n
	}
	return syscall.SIGINT
}
