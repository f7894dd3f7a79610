package fencelock

import (
	"math/rand/v2"
	"strconv"
	"time"
)

// dice are what the engine puts things off by chance with. They follow from a nonce: a test that
// seeds the nonces repeats everything.
type dice struct{ pcg rand.PCG }

// seed makes dice of a nonce, other ones for each number.
func (d *dice) seed(nonce string, n uint64) {
	s, _ := strconv.ParseUint(nonce[:16], 16, 64) // it is of hex digits
	d.pcg.Seed(s, n)
}

// below draws a time from zero up to most, not included.
func (d *dice) below(most time.Duration) time.Duration {
	return time.Duration(d.pcg.Uint64() % uint64(most))
}

// jitter takes up to a tenth off t, so that holders do not march in step.
func (d *dice) jitter(t time.Duration) time.Duration { return t - d.below(t/10+1) }
