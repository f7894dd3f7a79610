package redlock

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// ask sends operations to every node.
func (d *Driver) ask(ops []op, by time.Duration) *round {
	r := d.round()
	limit := time.Now().Add(by)
	for _, n := range d.nodes {
		n.send(&request{ops: ops, done: r.done, to: r, by: limit})
	}
	return r
}

// silence collects why nodes did not say what they were asked.
type silence struct {
	d    *Driver
	errs map[int]error
}

func (s *silence) add(node int, err error) {
	if s.errs == nil {
		s.errs = map[int]error{}
	}
	s.errs[node] = err
}

// parts says why of each node, and returns an error among them that matches ErrInvalid, if there is one.
func (s *silence) parts() (parts []string, bad error) {
	for i, n := range s.d.nodes {
		if e := s.errs[i]; e != nil {
			parts = append(parts, fmt.Sprintf("%s: %v", n.addr, e))
			if errors.Is(e, backend.ErrInvalid) {
				bad = e
			}
		}
	}
	return parts, bad
}

// err says that no majority answered, and why: ErrInvalid where a server says that asking again is of no use.
func (s *silence) err(answered int) error {
	parts, bad := s.parts()
	if silent := len(s.d.nodes) - answered - len(s.errs); silent > 0 {
		parts = append(parts, fmt.Sprintf("%d did not answer in time", silent))
	}
	err := fmt.Errorf("no majority: %d of %d nodes answered, %d are needed (%s)", answered, len(s.d.nodes), s.d.quorum, strings.Join(parts, "; "))
	if bad != nil {
		return &refused{err.Error(), bad}
	}
	return err
}

// patience is how long a round of votes for a lease of this TTL waits for a majority: a small part of the TTL. A node
// that does not answer delays nobody, as long as a majority does.
func patience(ttl time.Duration) time.Duration {
	return min(max(ttl/4, 50*time.Millisecond), voteMost)
}

// millis is a duration as Redis takes it. It rounds up: a node may keep a lock longer, never shorter.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
