package conformance

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock"
)

// hostileTransactions are rules K11: a transaction behind a lease commits only when the holder meant it.
var hostileTransactions = []Rule{
	{
		Name: "K11", What: "what a holder wrote commits only when it meant to",
		Why:   "A transfer whose second half failed, panicked or was shut down must not leave its first half behind.",
		Needs: Needs{Writes: true}, Check: commitsWhatWasMeant,
	},
}

// errFn is the error of a function of Do.
var errFn = errors.New("the function's error")

// ending is one way in which a holder that wrote something comes to its end.
type ending struct {
	what   string
	commit bool
	want   error // the caller's error matches it; nil: there is none
	as     bool  // and is the very error
	end    func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error
}

// endings are these ways. Each writes the name itself.
var endings = []ending{
	{what: "Unlock", commit: true, end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
		return e.writing(ctx, l, name).Unlock(ctx)
	}},
	{
		what: "Unlock with a ctx that is done", commit: true,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			le := e.writing(ctx, l, name)
			done, cancel := context.WithCancel(ctx)
			cancel()
			return le.Unlock(done)
		},
	},
	{
		what: "Do whose function returns nil", commit: true,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			return e.doing(ctx, l, name, func() error { return nil })
		},
	},
	{
		what: "Do whose function fails", want: errFn, as: true,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			return e.doing(ctx, l, name, func() error { return errFn })
		},
	},
	{
		what: "Do whose function panics", want: errFn, as: true,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) (err error) {
			defer func() { err, _ = recover().(error) }()
			return e.doing(ctx, l, name, func() error { panic(errFn) })
		},
	},
	{
		what: "Do whose ctx ends", want: context.Canceled,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			short, cancel := context.WithCancel(ctx)
			return e.doing(short, l, name, func() error { cancel(); return nil })
		},
	},
	{
		what: "Do inside Do, whose function fails", want: errFn,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			again := fencelock.WithReentrancy()
			return l.Do(ctx, name, func(ctx context.Context, le *fencelock.Lease) error {
				if err := e.h.Writes.Write(ctx, le, name); err != nil {
					return err
				}
				err := l.Do(ctx, name, func(context.Context, *fencelock.Lease) error { return errFn }, again)
				return want(err, errFn, "the inner Do")
			}, again)
		},
	},
	{
		what: "Break", want: fencelock.ErrLost,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			le := e.writing(ctx, l, name)
			check(want(l.Break(ctx, name), nil, "Break"))
			return le.Unlock(ctx)
		},
	},
	{
		what: "Close between two writes", want: fencelock.ErrClosed,
		end: func(ctx context.Context, e *Env, l *fencelock.Locker, name string) error {
			var closed error
			err := l.Do(ctx, name, func(ctx context.Context, le *fencelock.Lease) error {
				if err := e.h.Writes.Write(ctx, le, name); err != nil {
					return err
				}
				closed = l.Close()
				if err := e.h.Writes.Write(ctx, le, name+" after Close"); err == nil {
					return errors.New("a write after Close: got nil, want an error")
				}
				return nil
			})
			if err == nil {
				return errors.New("a Do whose lease was released by Close: got nil, want an error")
			}
			return closed
		},
	},
}

func commitsWhatWasMeant(ctx context.Context, e *Env) error {
	other := must(e.Open(ctx))
	for _, way := range endings {
		l := must(e.Open(ctx))
		name := e.prefix + e.Name()
		switch err := way.end(ctx, e, l, name); {
		case !errors.Is(err, way.want), way.want == nil && err != nil:
			return fmt.Errorf("%s: got %v, want %v", way.what, err, way.want)
		case way.as && err != way.want: // it must be the very error
			return fmt.Errorf("%s: got %v, want %v as it is", way.what, err, way.want)
		}
		must(cycle(ctx, other, name, way.what+": the next holder"))
		switch written, err := e.h.Writes.Written(ctx, name); {
		case err != nil:
			return fmt.Errorf("%s: what was written: %w", way.what, err)
		case written != way.commit:
			return fmt.Errorf("%s: committed: got %v, want %v", way.what, written, way.commit)
		}
	}
	return nil
}

// writing locks a name and writes it.
func (e *Env) writing(ctx context.Context, l *fencelock.Locker, name string) *fencelock.Lease {
	le := must(try(ctx, l, name, "a free lock"))
	check(e.h.Writes.Write(ctx, le, name))
	return le
}

// doing writes a name inside Do, which then calls end.
func (e *Env) doing(ctx context.Context, l *fencelock.Locker, name string, end func() error) error {
	return l.Do(ctx, name, func(ctx context.Context, le *fencelock.Lease) error {
		if err := e.h.Writes.Write(ctx, le, name); err != nil {
			return err
		}
		return end()
	})
}
