// Package fence is the resource's side of a lock: guards that refuse the access
// of a holder that was overtaken. It imports no store; guards that are atomic with an
// access to a store live with that store's driver.
package fence

import (
	"context"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// Token is a fencing token.
type Token = backend.Token

// A Guard remembers the greatest token that it has seen for each resource. It
// must be asked with every access, reads included, and atomically with it.
type Guard interface {
	// Check returns nil for a token that is equal to the greatest seen or greater,
	// which it remembers, and a *backend.StaleError, which matches ErrStale, for a lower one.
	Check(ctx context.Context, resource string, t Token) error
}

// Memory is a Guard in this process. The access that it protects is atomic with
// the check inside Do only. The zero value is ready to use.
type Memory struct {
	mu  sync.Mutex
	max map[string]Token
}

var _ Guard = (*Memory)(nil)

// Check implements Guard.
func (m *Memory) Check(ctx context.Context, resource string, t Token) error {
	return m.Do(ctx, resource, t, func() error { return nil })
}

// Do checks t and, if it is not stale, calls access before any other check of
// this guard can go on. It returns a *backend.StaleError or access's error.
func (m *Memory) Do(_ context.Context, resource string, t Token, access func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if t <= 0 {
		return backend.Invalid("token %d: want a positive one", t)
	}
	if seen := m.max[resource]; t < seen {
		return &backend.StaleError{Max: seen}
	}
	if m.max == nil {
		m.max = map[string]Token{}
	}
	m.max[resource] = t
	return access()
}
