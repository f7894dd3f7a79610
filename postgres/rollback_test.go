package postgres

import (
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// handler is a lease with this session.
type handler struct{ s *session }

func (h handler) Handle() any { return h.s }

// Rollback that comes beside the COMMIT of Unlock says so: nil is for what will be rolled back.
func TestRollbackThatUnlockOvertakes(t *testing.T) {
	s := &session{state: holding}
	s.tx.mu.Lock() // as a statement has it
	done := make(chan error, 1)
	go func() { done <- Rollback(handler{s}) }()
	<-time.After(50 * time.Millisecond) // it waits; if it comes later it is overtaken all the same
	s.stand(doubtful)
	s.tx.mu.Unlock()
	if err := <-done; !errors.Is(err, backend.ErrReleased) || s.tx.undone() {
		t.Errorf("Rollback behind a COMMIT: got %v, and undone %v", err, s.tx.undone())
	}
}
