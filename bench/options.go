package bench

import (
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Options of [Run]. The zero value of a field is its default.
type Options struct {
	Duration time.Duration // of each side in each round; default 1 s, at most 1 h
	Rounds   int           // each is ours and then raw; default 5, at most 1,000
	Only     []string      // operations or names of cases; default all
	Held     int           // leases of the case held; default 1,000, at most 100,000
	// Progress is called before each round, by the goroutine that called Run.
	Progress func(Progress)
}

// Progress is the position of a run.
type Progress struct {
	Backend     string // the label
	Case        Case
	Row, Rows   int // from 1; of this backend
	Round, Last int // from 1
}

func (o Options) withDefaults() (Options, error) {
	if o.Duration == 0 {
		o.Duration = time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 5
	}
	if o.Held == 0 {
		o.Held = 1000
	}
	switch {
	case o.Duration < 0 || o.Duration > time.Hour:
		const want = "the duration %v of a round: want more than 0 and at most 1h"
		return o, backend.Invalid(want, o.Duration)
	case o.Rounds < 0 || o.Rounds > 1000:
		return o, backend.Invalid("%d rounds: want 1 to 1000", o.Rounds)
	case o.Held < 0 || o.Held > 100_000:
		return o, backend.Invalid("%d held leases: want 1 to 100000", o.Held)
	}
	return o, checkOnly(o.Only, o.Held)
}
