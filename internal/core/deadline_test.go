package core

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/leaks"
)

// plain hides that its context is one of package context.
type plain struct{ context.Context }

// A deadline ends with its parent, at its time, or when its user is done, and what is derived of it ends with it.
func TestDeadlineEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		most time.Duration
		end  func(c *Deadline, parent context.CancelFunc)
		want error
	}{
		{"at its time", 20 * time.Millisecond, func(*Deadline, context.CancelFunc) {}, context.DeadlineExceeded},
		{"with its parent", time.Minute, func(_ *Deadline, cancel context.CancelFunc) { cancel() }, context.Canceled},
		{"when its user is done", time.Minute, func(c *Deadline, _ context.CancelFunc) { c.End() }, context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			for _, wrap := range []func(context.Context) context.Context{
				func(c context.Context) context.Context { return c },
				func(c context.Context) context.Context { return plain{c} },
				func(c context.Context) context.Context { return &Deadline{Context: c, At: time.Now().Add(time.Hour)} },
			} {
				root, cancel := context.WithCancel(t.Context())
				defer cancel()
				c := &Deadline{Context: wrap(root), At: time.Now().Add(tt.most)}
				child, stop := context.WithCancel(c)
				defer stop()
				called, kept := make(chan error, 1), make(chan error, 1)
				context.AfterFunc(c, func() { called <- c.Err() })
				if !context.AfterFunc(c, func() { kept <- c.Err() })() {
					t.Errorf("%s: what was to be called could not be taken back", tt.name)
				}
				if c.Err() != nil || child.Err() != nil {
					t.Errorf("%s: ended before", tt.name)
				}
				tt.end(c, cancel)
				if err := <-called; !errors.Is(err, tt.want) {
					t.Errorf("%s: called with %v, want %v", tt.name, err, tt.want)
				}
				<-c.Done()
				<-child.Done()
				if !errors.Is(c.Err(), tt.want) || !errors.Is(child.Err(), tt.want) {
					t.Errorf("%s: got %v, and %v of the child, want %v", tt.name, c.Err(), child.Err(), tt.want)
				}
				late, stopLate := context.WithCancel(c)
				stopLate()
				if !errors.Is(late.Err(), tt.want) {
					t.Errorf("%s: what is derived later has %v, want %v", tt.name, late.Err(), tt.want)
				}
				select {
				case <-kept:
					t.Errorf("%s: what was taken back was called", tt.name)
				default:
				}
			}
		})
	}
}

// A client whose first look is at the channel sends nothing for a caller who has gone.
func TestDeadlineOfOneThatHasEnded(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []*Deadline{
		{Context: ended, At: time.Now().Add(time.Minute)},
		{Context: t.Context(), At: time.Now().Add(-time.Second)},
		{Context: &Deadline{Context: ended, At: time.Now().Add(time.Minute)}, At: time.Now().Add(time.Minute)},
	} {
		select {
		case <-c.Done():
		default:
			t.Error("the channel is open")
		}
	}
}

// A deadline before another one ends with all that ends that one, and has its values.
func TestDeadlineBeforeAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		other time.Duration // when the other one ends by itself
		end   func(caller, owner context.CancelFunc)
		after time.Duration
		want  error
		cause error
	}{
		"its own time": {
			time.Minute, func(_, _ context.CancelFunc) {}, 5 * time.Second, context.DeadlineExceeded, nil,
		},
		"the other's": {
			2 * time.Second, func(_, _ context.CancelFunc) {}, 2 * time.Second, context.DeadlineExceeded, nil,
		},
		"the caller": { // whose end counts after a second
			time.Minute, func(caller, _ context.CancelFunc) { caller() }, time.Second, context.Canceled, nil,
		},
		"the owner": {
			time.Minute, func(_, owner context.CancelFunc) { owner() }, time.Second / 2,
			context.Canceled, backend.ErrClosed,
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			caller, cancel := context.WithCancel(context.WithValue(t.Context(), plain{}, name))
			defer cancel()
			owner, end := context.WithCancel(t.Context())
			defer end()
			other := &Deadline{Context: caller, Owner: owner, At: start.Add(tt.other), Least: start.Add(time.Second)}
			var c Deadline
			c.before(other, start.Add(5*time.Second))
			time.AfterFunc(time.Second/2, func() { tt.end(cancel, end) })
			child, stop := context.WithCancel(&c)
			defer stop()
			<-child.Done()
			took := time.Since(start)
			if took != tt.after || c.Err() != tt.want || child.Err() != tt.want || c.Cause() != tt.cause {
				t.Errorf("%s: got %v, of the child %v, cause %v, after %v; want %v, cause %v, after %v",
					name, c.Err(), child.Err(), c.Cause(), took, tt.want, tt.cause, tt.after)
			}
			if got := child.Value(plain{}); got != name {
				t.Errorf("%s: got the value %v, want the caller's", name, got)
			}
		})
	}
}

// What is derived of a deadline costs no goroutine.
func TestDeadlineCostsNoGoroutine(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	defer cancel()
	at := time.Now().Add(time.Minute)
	c := &Deadline{Context: &Deadline{Context: parent, At: at}, At: at}
	before := leaks.Goroutines()
	for range 100 {
		_, stop := context.WithCancel(context.WithValue(c, plain{}, 1)) // as gRPC does
		defer stop()
	}
	// runtime.NumGoroutine counts ended ones too while their stacks are being freed.
	if n := len(leaks.Goroutines()) - len(before); n > 10 {
		t.Errorf("100 contexts cost %d goroutines", n)
	}
}
