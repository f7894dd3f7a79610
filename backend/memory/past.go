package memory

// outcome is how an acquisition ended.
type outcome byte

const (
	unknown outcome = iota
	released
	abandoned
)

// remembered is how many ended acquisitions a store knows, so that a release that is
// sent again is told nil, and a request that comes after it was abandoned is not granted.
const remembered = 1024

// past remembers the last acquisitions that ended.
type past struct {
	how  map[string]outcome
	ring [remembered]string
	next int
}

func newPast() past { return past{how: make(map[string]outcome)} }

func (p *past) get(nonce string) outcome { return p.how[nonce] }

func (p *past) put(nonce string, how outcome) {
	if _, known := p.how[nonce]; !known {
		delete(p.how, p.ring[p.next])
		p.ring[p.next] = nonce
		p.next = (p.next + 1) % remembered
	}
	p.how[nonce] = how
}
