package measure

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// LeastJump is the smallest difference that counts as a jump. Between two looks a clock that is
// slewed, or two clocks that do not run quite alike, stay far below it.
const LeastJump = 500 * time.Millisecond

// A Reading is what two clocks show at one moment.
type Reading struct {
	Wall time.Time // the wall clock, without a monotonic reading
	// since some moment in the past, whatever happens to the wall clock; with the machine's sleep
	// where the system can tell
	Run time.Duration
}

// Clock returns what this machine's clocks show.
func Clock() func() Reading {
	first := backend.Now()
	return func() Reading {
		now := backend.Now()
		return Reading{now.Time().Round(0), now.Sub(first)}
	}
}

// Jumps counts how often the wall clock was set: moved against the monotonic clock. It sees what happened between two
// looks, so it costs nothing in between.
type Jumps struct {
	clock func() Reading

	mu                sync.Mutex
	last              Reading
	forward, backward int64
}

// NewJumps looks for the first time.
func NewJumps(clock func() Reading) *Jumps {
	return &Jumps{clock: clock, last: clock()}
}

// Look returns how many jumps it has seen, with what happened since the last look.
func (j *Jumps) Look() (forward, backward int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.clock()
	switch moved := now.Wall.Sub(j.last.Wall) - (now.Run - j.last.Run); {
	case moved >= LeastJump:
		j.forward++
	case moved <= -LeastJump:
		j.backward++
	}
	j.last = now
	return j.forward, j.backward
}
