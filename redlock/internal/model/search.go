package model

import (
	"hash/maphash"
	"strings"
	"time"
)

// Result of a search.
type Result struct {
	States int
	Depth  int           // the longest of the shortest ways to a state
	Grants int           // states with a holder
	Took   time.Duration // of the search
	Broken string        // the property that does not hold; empty if all do
	Trace  []string      // the shortest way to break it
	Whole  bool          // every state was visited
}

// origin is how a state was reached: the step of its parent that led to it.
type origin struct {
	parent uint32
	step   uint16
}

// Search visits every state that can be reached, nearest first, up to a number of states. States are told
// apart by hashes of 64 bits.
func Search(c Config, most int) Result {
	began := time.Now()
	m := &machine{Config: c}
	seed := maphash.MakeSeed()
	seen := newSet()
	first := m.initial()
	m.tidy(&first)
	seen.add(maphash.Comparable(seed, first))
	level, origins := []state{first}, []origin{{}}
	res := Result{States: 1}
	for base := 0; len(level) > 0; {
		var next []state
		for i := range level {
			for k, st := range m.steps(&level[i]) {
				if st.broken != "" {
					res.Broken, res.Took = st.broken, time.Since(began)
					res.Trace = trace(c, first, origins, uint32(base+i), k)
					return res
				}
				if !seen.add(maphash.Comparable(seed, st.next)) {
					continue
				}
				res.States++
				for _, a := range st.next.attempts {
					if a.phase == granted {
						res.Grants++
						break
					}
				}
				next = append(next, st.next)
				origins = append(origins, origin{uint32(base + i), uint16(k)})
			}
			if res.States > most {
				res.Took = time.Since(began)
				return res
			}
		}
		base += len(level)
		level = next
		if len(next) > 0 {
			res.Depth++
		}
	}
	res.Took, res.Whole = time.Since(began), true
	return res
}

// trace tells the way to a state, and the step from it, by doing it again.
func trace(c Config, s state, origins []origin, at uint32, last int) []string {
	ks := []int{last}
	for ; at != 0; at = origins[at].parent {
		ks = append(ks, int(origins[at].step))
	}
	m := &machine{Config: c, named: true}
	var words []string
	for i := len(ks) - 1; i >= 0; i-- {
		st := m.steps(&s)[ks[i]]
		words = append(words, st.action)
		s = st.next
	}
	return words
}

// String tells the trace, a step a line.
func (r Result) String() string { return r.Broken + "\n\t" + strings.Join(r.Trace, "\n\t") }

// set is a set of hashes: open addressing, for a map of so many costs several times as much.
type set struct {
	slots []uint64
	n     int
}

func newSet() *set { return &set{slots: make([]uint64, 1<<16)} }

// add reports whether h is new.
func (s *set) add(h uint64) bool {
	h = max(h, 1) // 0 is an empty slot
	if 2*s.n >= len(s.slots) {
		old := s.slots
		s.slots = make([]uint64, 2*len(old))
		for _, x := range old {
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
