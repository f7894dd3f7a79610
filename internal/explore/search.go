// Package explore visits every state of a small machine: how the proofs of this project's protocols are checked.
package explore

import (
	"hash/maphash"
	"strings"
	"time"
)

// Result of a search.
type Result struct {
	States int
	Depth  int           // the longest of the shortest ways to a state
	Grants int           // states in which somebody was told that he holds
	Took   time.Duration // of the search
	Whole  bool          // every state was visited
	Broken string        // the promise that does not hold; empty if all do
	Trace  []string      // the shortest way to break it
}

// String tells the trace, a step a line.
func (r Result) String() string { return r.Broken + "\n\t" + strings.Join(r.Trace, "\n\t") }

// A Step is a state that follows, what was done, and the promise that it breaks, if any.
type Step[S any] struct {
	Next   S
	Action string // in words, if the machine tells
	Broken string
}

// A Machine makes the steps from a state.
type Machine[S any] interface {
	Steps(*S) []Step[S] // valid until the next call
	Holds(*S) bool      // somebody was told that he holds
}

// visit is a state that was reached, and how: by which step of which one before it.
type visit struct {
	parent uint32
	step   uint16
}

// Search visits every state that can be reached, nearest first, until there are more than most. States
// are told apart by hashes of 64 bits. start makes a machine, whose steps are told in words or not.
func Search[S comparable](first S, start func(tells bool) Machine[S], most int) (r Result) {
	began := time.Now()
	defer func() { r.Took = time.Since(began) }()
	m := start(false)
	seed, seen := maphash.MakeSeed(), set{slots: make([]uint64, 1<<16)}
	seen.add(maphash.Comparable(seed, first))
	level, visits := []S{first}, []visit{{}}
	for r.States = 1; len(level) > 0; {
		base := len(visits) - len(level)
		var next []S
		for i := range level {
			for n, st := range m.Steps(&level[i]) {
				here := visit{uint32(base + i), uint16(n)}
				if st.Broken != "" {
					r.Broken, r.Trace = st.Broken, retrace(start(true), first, visits, here)
					return r
				}
				if !seen.add(maphash.Comparable(seed, st.Next)) {
					continue
				}
				if r.States++; r.States > most {
					return r
				}
				if m.Holds(&st.Next) {
					r.Grants++
				}
				next, visits = append(next, st.Next), append(visits, here)
			}
		}
		if level = next; len(level) > 0 {
			r.Depth++
		}
	}
	r.Whole = true
	return r
}

// retrace tells the way to a step by going it again.
func retrace[S any](m Machine[S], s S, visits []visit, last visit) []string {
	way := []uint16{last.step}
	for at := last.parent; at != 0; at = visits[at].parent {
		way = append(way, visits[at].step)
	}
	var words []string
	for i := len(way) - 1; i >= 0; i-- {
		st := m.Steps(&s)[way[i]]
		words = append(words, st.Action)
		s = st.Next
	}
	return words
}

// set is a set of hashes with open addressing: a map of so many costs several times as much.
type set struct {
	slots []uint64
	n     int
}

// add reports whether h is new.
func (s *set) add(h uint64) bool {
	h = max(h, 1) // 0 is an empty slot
	if 2*s.n >= len(s.slots) {
		before := s.slots
		s.slots = make([]uint64, 2*len(before))
		for _, x := range before {
			if x != 0 {
				*s.slot(x) = x
			}
		}
	}
	p := s.slot(h)
	if *p == h {
		return false
	}
	*p = h
	s.n++
	return true
}

func (s *set) slot(h uint64) *uint64 {
	mask := uint64(len(s.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		if s.slots[i] == 0 || s.slots[i] == h {
			return &s.slots[i]
		}
	}
}
