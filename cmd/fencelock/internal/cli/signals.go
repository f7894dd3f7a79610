package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Notify returns the channel of the signals that this program deals with, and what ends that. One
// that was ignored when the program started (nohup, a background job of a script) stays so.
func Notify() (<-chan os.Signal, func()) {
	sigs := make(chan os.Signal, 16)
	for _, s := range Forwarded() {
		if !signal.Ignored(s) {
			signal.Notify(sigs, s)
		}
	}
	return sigs, func() { signal.Stop(sigs) }
}

// UntilSignal returns a ctx that the first signal ends, and a function that leaves later signals to
// others: once it has returned, a signal either has ended ctx or is still in sigs.
func UntilSignal(parent context.Context, sigs <-chan os.Signal) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		select {
		case s := <-sigs:
			cancel(signalled(s.(syscall.Signal))) // on every system that this is for
		case <-stop:
		}
	}()
	return ctx, func() {
		close(stop)
		<-stopped
		cancel(nil)
	}
}

// Signalled returns the error that names the signal which ended ctx; nil if none did.
func Signalled(ctx context.Context) error {
	if f, ok := errors.AsType[*failure](context.Cause(ctx)); ok {
		return f
	}
	return nil
}

// Interrupted returns err, or the signal that ended ctx if err comes of that.
func Interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	if sig := Signalled(ctx); sig != nil {
		return sig
	}
	return signalled(syscall.SIGINT)
}

// Interruptible does something with a ctx that the first signal ends.
func Interruptible(parent context.Context, do func(context.Context) error) error {
	sigs, quit := Notify()
	defer quit()
	ctx, stop := UntilSignal(parent, sigs)
	defer stop()
	return Interrupted(ctx, do(ctx))
}
