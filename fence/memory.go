package fence

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Memory is a Doer for resources that live in this process. It remembers one number for every resource
// it was ever asked about, and forgets them with the process: what outlives the process needs a guard
// that is stored with it. Accesses to different resources go on at the same time. The zero value is
// ready to use.
type Memory struct {
	mu      sync.Mutex
	records map[string]*record
}

// record is what is known of one resource.
type record struct {
	turn chan struct{} // holds one value while nobody has the turn
	max  Token         // read and written with the turn
}

var _ Doer = (*Memory)(nil)

// Check implements Guard. The access that follows it is not atomic with it: see [Memory.Do].
func (m *Memory) Check(ctx context.Context, resource string, t Token) error {
	return m.Do(ctx, resource, t, func() error { return nil })
}

// Do implements Doer. A token further ahead of this machine's clock in µs, and of what was seen, than
// [backend.FloorAhead] is ErrInvalid: once remembered it would keep every holder out for good.
func (m *Memory) Do(ctx context.Context, resource string, t Token, access func() error) error {
	if t <= 0 {
		return backend.Invalid("token %d: want a positive one", t)
	}
	s := m.of(resource)
	select {
	case <-s.turn:
	default:
		select {
		case <-s.turn:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { s.turn <- struct{}{} }()
	if t < s.max {
		return &backend.StaleError{Max: s.max}
	}
	if now := max(time.Now().UnixMicro(), s.max); t > now+backend.FloorAhead {
		return backend.Invalid("token %d: want at most an hour (in µs) above this machine's clock and every token "+
			"that was seen, which is %d", t, now)
	}
	s.max = t
	return access()
}

func (m *Memory) of(resource string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.records[resource]
	if s == nil {
		s = &record{turn: make(chan struct{}, 1)}
		s.turn <- struct{}{}
		if m.records == nil {
			m.records = map[string]*record{}
		}
		m.records[resource] = s
	}
	return s
}
