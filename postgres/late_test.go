package postgres

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A call that waits for the answer to another's statement has had none when that is given up: nobody has cancelled the
// call.
func TestJoinsWhatIsGivenUp(t *testing.T) {
	t.Parallel()
	f := &flight{over: make(chan struct{}), err: context.Canceled}
	close(f.over)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := new(slow).join(ctx, f, new(statement)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that there was no answer in time", err)
	}
}
