package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// Notify returns a channel of the signals that this program handles, and a function that ends the
// handling. A signal that was ignored when the program started (nohup, a background job of a script)
// stays ignored.
func Notify() (<-chan os.Signal, func()) {
	sigs := make(chan os.Signal, 16)
	for _, s := range Forwarded() {
		if !signal.Ignored(s) {
			signal.Notify(sigs, s)
		}
	}
	return sigs, func() { signal.Stop(sigs) }
}

// UntilSignal returns a ctx that the first signal ends, and a function that stops taking signals. Once
// that function has returned, a signal either has ended ctx or is still in sigs.
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

// Interrupted returns err, or the signal that ended ctx if that is the cause of err.
func Interrupted(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) {
		return err
	}
	if sig := Signalled(ctx); sig != nil {
		return sig
	}
	return signalled(syscall.SIGINT)
}

// Interruptible calls do with a ctx that the first signal ends. A store that hangs can make do's cleaning
// up long: from then on the system handles INT and TERM, so the second of them ends the process.
func Interruptible(parent context.Context, do func(context.Context) error) error {
	sigs, quit := Notify()
	defer quit()
	ctx, stop := UntilSignal(parent, sigs)
	defer stop()
	defer context.AfterFunc(ctx, func() {
		if Signalled(ctx) != nil {
			signal.Reset(os.Interrupt, syscall.SIGTERM)
		}
	})()
	return Interrupted(ctx, do(ctx))
}
