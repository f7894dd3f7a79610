package prometheus

import (
	"github.com/fencelock/fencelock/metrics/internal/measure"
)

// SetClock makes the Collector look at this clock.
func (c *Collector) SetClock(clock func() measure.Reading) { c.jumps = measure.NewJumps(clock) }
