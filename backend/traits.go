package backend

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Fencing is how far a backend's tokens can be relied on.
type Fencing int

const (
	// NoFencing: there are no tokens.
	NoFencing Fencing = iota
	// Anchored: tokens rise through everything that the store's data survives,
	// and through a loss or rollback of the data as far as the store's clock does
	// not go back over it.
	Anchored
	// Durable: what makes the next token greater is on stable storage or on a
	// majority of nodes; where it is not written yet, the server's clock stands in for it.
	Durable
)

// String returns the word that the documents use.
func (f Fencing) String() string {
	switch f {
	case NoFencing:
		return "none"
	case Anchored:
		return "anchored"
	case Durable:
		return "durable"
	}
	return fmt.Sprintf("fencing %d", int(f))
}

// Traits are a backend's promises, as data. The conformance suite holds a
// backend to what it claims here, and shows what it denies.
type Traits struct {
	Name          string        // "memory", "redis", "postgres-row"
	Fencing       Fencing       // what its tokens are worth
	FIFO          bool          // first come, first served among live waiters
	DeadWaiter    time.Duration // the most a dead waiter delays the others, however long its TTL
	ClockFree     bool          // safety does not depend on the clocks of servers
	SurvivesNode  bool          // one node of the store may die without losing the lock
	Transactional bool          // the holder's writes commit with Unlock
	Grace         bool          // WithGrace is possible
	MinHold       bool          // WithMinHold is possible: a lock outlives its driver's Close, until its expiry
	LeasePerConn  bool          // a held lease costs a connection
	Readers       bool          // RWMutex: many may read at once
	Permits       int           // the most of a Semaphore; 0: it has none
	MinTTL        time.Duration // the shortest TTL
	Resolution    time.Duration // the unit of time of the store: how far its expiry may be off
	Revoked       time.Duration // a holder learns of Break within this; 0: no promise, and no looks
	Margin        time.Duration // at least so much of a TTL is not trusted
}

// Need is what a program requires of a backend. A zero field asks nothing.
type Need struct {
	Fencing       Fencing       // at least this
	FIFO          bool          // first come, first served
	ClockFree     bool          // safe whatever the servers' clocks do
	SurvivesNode  bool          // safe when one node dies
	Transactional bool          // writes commit with Unlock
	TTL           time.Duration // leases as short as this must be possible
	Readers       bool          // RWMutex
	Permits       int           // a Semaphore of so many
}

// Missing names the fields of n that t falls short of, each with what is needed.
func (n Need) Missing(t Traits) []string {
	var miss []string
	for _, f := range []struct {
		lacks bool
		what  string
	}{
		{n.Fencing > t.Fencing, "Fencing " + n.Fencing.String()},
		{n.FIFO && !t.FIFO, "FIFO"},
		{n.ClockFree && !t.ClockFree, "ClockFree"},
		{n.SurvivesNode && !t.SurvivesNode, "SurvivesNode"},
		{n.Transactional && !t.Transactional, "Transactional"},
		{n.TTL > 0 && n.TTL < t.MinTTL, "TTL " + n.TTL.String()},
		{n.Readers && !t.Readers, "Readers"},
		{n.Permits > t.Permits, fmt.Sprintf("Permits %d", n.Permits)},
	} {
		if f.lacks {
			miss = append(miss, f.what)
		}
	}
	return miss
}

// Check returns nil if t has all that n asks, and otherwise an error that
// matches [ErrUnsupported] and names each missing field with the backends of
// this library that have it.
func (n Need) Check(t Traits) error {
	if n.TTL < 0 {
		return Invalid("Need.TTL is %v: it must not be negative", n.TTL)
	}
	if n.Permits < 0 {
		return Invalid("Need.Permits is %d: it must not be negative", n.Permits)
	}
	miss := n.Missing(t)
	if len(miss) == 0 {
		return nil
	}
	parts := make([]string, len(miss))
	for i, m := range miss {
		have := haveInCatalog(n, m)
		if have == "" {
			have = "no backend of this version has it"
		} else {
			have = "have it: " + have
		}
		parts[i] = fmt.Sprintf("%s (%s)", m, have)
	}
	return Unsupported("%s does not offer what is required: %s", t.Name, strings.Join(parts, "; "))
}

// haveInCatalog lists the backends that do not miss the field m of n.
func haveInCatalog(n Need, m string) string {
	var have []string
	for _, e := range Catalog() {
		if !slices.Contains(n.Missing(e.Traits), m) {
			have = append(have, e.Traits.Name)
		}
	}
	return strings.Join(have, ", ")
}
