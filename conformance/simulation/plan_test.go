package simulation

import (
	"math/rand/v2"
	"time"
)

// How much goes wrong in a world.
const (
	calm    = iota // nothing: every promise is kept to the letter
	mild           // single messages are lost, late by less than a second, or come twice
	rough          // messages are late by up to two TTLs; cuts, pauses, outages
	wiping         // rough, and the store loses its data
	hanging        // nothing, but that the store takes requests in and is silent
	tempers
)

// plan is what a seed says of a world as a whole.
type plan struct {
	temper  int
	clients int
	ttl     time.Duration // the most usual one
	longest time.Duration
	patient bool // the driver waits long for an answer
	checks  bool // the driver can Check, and the store does not tell of a loss
	waits   bool // the driver uses core.Wait; otherwise it is one that is told
	bare    bool // the driver sends each thing once
	most    int  // and so many together
	mixed   bool // the leaves among them
	outages []outage
	hangs   []hang
	brief   bool      // the hangs are so short that no lease may be lost to them
	faults  [][]fault // of each client
	manners []manner  // of each client's observer
	shares  bool      // several hold one name at once
	bursts  bool      // several goroutines of a client take turns with one lock
	goesOn  bool      // also when a mistake has shown
}

// outage is a time in which the store is down.
type outage struct {
	from, to time.Duration
	wiped    bool
}

// hang is a time in which the store takes requests in and answers none.
type hang struct{ from, to time.Duration }

// manner is how an observer behaves.
type manner struct{ slow, panics bool }

// further draws what a world has beside its temper.
func (p *plan) further(seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	p.bursts = r.IntN(2) == 0
	of := rand.New(rand.NewPCG(seed, 3))
	p.bare, p.most, p.mixed = of.IntN(2) == 0, 1+of.IntN(2)*7, of.IntN(2) == 0
	for range p.clients {
		m := r.IntN(6)
		p.manners = append(p.manners, manner{slow: m == 0 || m == 2, panics: m == 1 || m == 2})
	}
	p.brief = r.IntN(2) == 0
	n := r.IntN(3)
	switch p.temper {
	case hanging:
		n++
	case rough, wiping:
	default:
		return
	}
	most := 3 * p.ttl
	if p.brief {
		most = p.ttl / 4
	}
	for i := range n {
		from := time.Duration(i)*50*time.Second + between(r, time.Second, 20*time.Second)
		p.hangs = append(p.hangs, hang{from, from + between(r, 300*time.Millisecond, most)})
	}
}

type kind int

// The faults of a client.
const (
	cutThere kind = iota // its requests are lost
	cutBack              // the replies to it are
	cut                  // both
	slow                 // its messages take up to two TTLs
	pause                // it stands still
	kinds
)

// fault is a time in which a client, or its network, is not well.
type fault struct {
	kind     kind
	from, to time.Duration
}

func newPlan(seed uint64) plan {
	r := rand.New(rand.NewPCG(seed, 1))
	p := plan{
		temper: int(seed % tempers), clients: 2 + r.IntN(2),
		ttl: []time.Duration{3, 6, 10}[r.IntN(3)] * time.Second,
	}
	p.shares = seed%4 == 2
	p.longest = 2*p.ttl + 5*time.Second
	p.checks, p.waits = r.IntN(4) == 0, r.IntN(2) == 0
	p.patient = r.IntN(3) == 0
	p.faults = make([][]fault, p.clients)
	p.further(seed)
	if p.temper != rough && p.temper != wiping {
		return p
	}
	for i := range p.clients {
		for range r.IntN(4) {
			from := time.Duration(r.Int64N(int64(90 * time.Second)))
			p.faults[i] = append(p.faults[i], fault{
				kind(r.IntN(int(kinds))), from, from + between(r, 500*time.Millisecond, 2*p.ttl),
			})
		}
	}
	for i := range r.IntN(3) {
		from := time.Duration(i)*40*time.Second + between(r, time.Second, 25*time.Second)
		p.outages = append(p.outages, outage{
			from, from + between(r, 300*time.Millisecond, 8*time.Second),
			p.temper == wiping && r.IntN(3) > 0,
		})
	}
	if p.temper == wiping && len(p.outages) > 0 {
		p.outages[0].wiped = true
	}
	return p
}

// between draws a time, to the nanosecond: no two things happen at the same instant by plan.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)+1))
}

// has reports whether a fault of one of these kinds lies over the moment, and when the last of them is over.
func has(faults []fault, at time.Duration, kinds ...kind) (bool, time.Duration) {
	var found bool
	var end time.Duration
	for _, f := range faults {
		for _, k := range kinds {
			if f.kind == k && at >= f.from && at < f.to {
				found, end = true, max(end, f.to)
			}
		}
	}
	return found, end
}
