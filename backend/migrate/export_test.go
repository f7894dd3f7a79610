package migrate

import "github.com/fencelock/fencelock/backend"

// Over returns the pair over other stores; one that is nil stays.
func (p Pair) Over(from, to backend.Driver) Pair {
	o := p
	if from != nil {
		o.from, _ = gaterOf("old", from)
	}
	if to != nil {
		o.to, _ = gaterOf("new", to)
	}
	return o
}
