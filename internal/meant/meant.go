// Package meant says which hold an operator means to break. Locker.Break frees a lock whoever holds it, and looks at it
// for a while before: by then the lock may have another holder. A program whose user has seen one hold, and has said
// yes to that, gives Break what he saw.
package meant

import (
	"context"
	"fmt"

	"github.com/fencelock/fencelock/backend"
)

type key struct{}

// With returns a context in which Break frees the lock if its holder is the one that seen shows, or if it is free as in
// seen. Else Break changes nothing, and its error is a *[GoneError]. Between Break's last look and the store's break
// there is one round trip, in which the holder may change yet.
func With(ctx context.Context, seen backend.Info) context.Context {
	return context.WithValue(ctx, key{}, seen)
}

// Of returns what With was given, if it was.
func Of(ctx context.Context) (seen backend.Info, ok bool) {
	seen, ok = ctx.Value(key{}).(backend.Info)
	return seen, ok
}

// A GoneError says that the hold that was meant is there no more. It matches backend.ErrLost.
type GoneError struct {
	Now backend.Info // what is there
}

func (e *GoneError) Error() string {
	if !e.Now.Held {
		return "it is free by now"
	}
	return fmt.Sprintf("it is held with another token by now: %d", e.Now.Token)
}

// Unwrap makes it one of the store's clear answers.
func (e *GoneError) Unwrap() error { return backend.ErrLost }
