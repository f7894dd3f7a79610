package guarantees_test

import (
	"errors"
	"testing"
)

// mishapError is an error of the machinery that makes a fault: a tool, a server that does not start.
type mishapError struct{ error }

func (e mishapError) Unwrap() error { return e.error }

// mishap marks an error as one of the machinery.
func mishap(err error) error {
	if err == nil {
		return nil
	}
	return mishapError{err}
}

// apart parts what says that a promise was broken from the mishaps.
func apart(err error) (broken, mishaps error) {
	if err == nil {
		return nil, nil
	}
	if _, ok := err.(mishapError); ok {
		return nil, err
	}
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err, nil
	}
	for _, e := range joined.Unwrap() {
		b, m := apart(e)
		broken, mishaps = errors.Join(broken, b), errors.Join(mishaps, m)
	}
	return broken, mishaps
}

// only reports whether every part of an error matches target.
func only(err, target error) bool {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return errors.Is(err, target)
	}
	for _, e := range joined.Unwrap() {
		if !only(e, target) {
			return false
		}
	}
	return true
}

func TestApart(t *testing.T) {
	promise, tool := errors.New("two holders"), errors.New("no such file")
	for _, c := range []struct {
		name            string
		err             error
		broken, mishaps bool
	}{
		{"none", nil, false, false},
		{"a promise", promise, true, false},
		{"a tool", mishap(tool), false, true},
		{"a mishap hides nothing", errors.Join(mishap(tool), errors.Join(promise, mishap(tool))), true, true},
		{"of several tools", mishap(errors.Join(tool, promise)), false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			broken, mishaps := apart(c.err)
			if (broken != nil) != c.broken || (mishaps != nil) != c.mishaps {
				t.Errorf("got %v and %v, want a broken promise: %v, a mishap: %v", broken, mishaps, c.broken, c.mishaps)
			}
		})
	}
}
