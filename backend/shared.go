package backend

import (
	"fmt"
	"math"
)

// Mode is how a claim holds its name.
type Mode uint8

const (
	// Exclusive: alone.
	Exclusive Mode = iota
	// Reader: beside any number of other readers.
	Reader
	// Permit: beside other permits, up to Request.Limit in all.
	Permit
)

var modes = [...]string{Exclusive: "exclusive", Reader: "reader", Permit: "permit"}

// String returns the mode in a word.
func (m Mode) String() string {
	if int(m) < len(modes) {
		return modes[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// MarshalText returns the word.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText takes the word.
func (m *Mode) UnmarshalText(word []byte) error {
	for i, known := range modes {
		if string(word) == known {
			*m = Mode(i)
			return nil
		}
	}
	return Invalid("the mode %q: want exclusive, reader or permit", word)
}

// MostPermits is the greatest Limit of a Permit.
const MostPermits = 1024

// Most is how many may hold the name at once as far as r is concerned, itself included.
func (r *Request) Most() int {
	switch r.Mode {
	case Reader:
		return math.MaxInt
	case Permit:
		return r.Limit
	}
	return 1
}

// Admits is the one rule for holding a name together: all holders have one mode, and their number is at
// most the least Most among them. So requests whose Limit differs bind each other, and nobody is beside
// Exclusive. there are its holders, and the waiters that it is kept for. A driver asks it only for a
// claim with no waiter in front; package tests/models/shared says what else it must keep.
func (r *Request) Admits(there []*Request) bool {
	most := r.Most()
	for _, h := range there {
		if h.Mode != r.Mode {
			return false
		}
		most = min(most, h.Most())
	}
	return len(there) < most
}
