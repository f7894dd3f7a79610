package zookeeper

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxToken is below 2^53; maxClock keeps a clock that is far off from using up the numbers.
const (
	maxToken = 1<<53 - 1
	maxClock = 1 << 52
	// maxAhead, in µs, is how far a counter may be ahead of the clock for numbers in stock, and
	// inStock how many these are.
	maxAhead = 3000
	inStock  = 500
)

// bucket is the counter of the names of one bucket: a node whose data is a number that no token
// exceeds. A client draws the numbers above it by setting it, on the condition that its version is
// the one that the client has seen, and some more than one: those it may draw as long as that
// version stands. So a token is known before the request is sent, stands in the holder's node, and
// is part of the grant.
type bucket struct {
	path  string
	taken chan struct{} // of size 1: the one multi of this process that draws from it now

	mu  sync.Mutex
	now draws
}

func newBucket(path string) *bucket { return &bucket{path: path, taken: make(chan struct{}, 1)} }

// draws is what a process knows of a counter.
type draws struct {
	known   bool
	version int32
	last    backend.Token // its value
	next    backend.Token // from here to last the numbers are ours
}

// load asks the server for the counter if it is not known, and makes it if it is missing.
func (b *bucket) load(ctx context.Context, s *session) error {
	if b.state().known {
		return nil
	}
	_, err := together(ctx, s, b.path, false, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, b.find(ctx, s)
	})
	return err
}

// find is read, and makes the counters if this one is missing.
func (b *bucket) find(ctx context.Context, s *session) error {
	for {
		err := b.read(ctx, s)
		if !errors.Is(err, zk.ErrNoNode) {
			return err
		}
		_, err = together(ctx, s, "counters", false, s.makeCounters)
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
		if err == nil && b.state().known {
			return nil
		}
	}
}

// makeCounters makes all counters that are missing, in one request: names are spread over them, so
// where one is missing others are about to be.
func (s *session) makeCounters(ctx context.Context) (made struct{}, err error) {
	var there []string
	if err := s.ensured(ctx, func() (err error) {
		there, err = s.children(ctx, s.st.at.tokens)
		return err
	}); err != nil {
		return made, err
	}
	var missing []*bucket
	var ops []any
	for _, b := range s.st.buckets {
		if !slices.Contains(there, path.Base(b.path)) {
			missing = append(missing, b)
			ops = append(ops, &zk.CreateRequest{Path: b.path, Data: number(0), Acl: s.st.acl})
		}
	}
	if len(ops) == 0 {
		return made, nil
	}
	if _, err := s.multi(ctx, ops...); err != nil {
		return made, err
	}
	for _, b := range missing {
		b.set(draws{next: 1}) // as it was made
	}
	return made, nil
}

func (b *bucket) read(ctx context.Context, s *session) error {
	n, err := get(ctx, s, b.path)
	if err != nil {
		return err
	}
	last, err := strconv.ParseInt(string(n.data), 10, 64)
	if err != nil || last < 0 || last > maxToken {
		return backend.Invalid("the node %s does not hold a token but something that another "+
			"program put there", b.path)
	}
	b.set(draws{version: n.stat.Version, last: last, next: last + 1})
	return nil
}

// state returns what is known of the counter.
func (b *bucket) state() draws {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// set takes in what the server has. The value never falls here: the server may have lost its data.
func (b *bucket) set(d draws) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.last < b.now.last {
		d.last, d.next = b.now.last, b.now.last+1
	}
	d.known = true
	b.now = d
}

// drawn takes in what a multi has made of the counter, unless something newer is known.
func (b *bucket) drawn(d draws) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if d.last >= b.now.last {
		b.now = d
	}
}

// hint takes in what a holder's node says: it may be newer than what is known.
func (b *bucket) hint(version int32, last backend.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last > b.now.last && last <= maxToken {
		b.now = draws{known: true, version: version, last: last, next: last + 1}
	}
}

// forget makes the next grant ask the server.
func (b *bucket) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now.known = false
}

// pot is what the grants of one multi draw from one counter, which is set once for all of them, or
// not at all if there are numbers enough.
type pot struct {
	draws
	bucket *bucket
	sets   bool
}

// draw returns the token of a grant, and how many of those that it wants reserved follow it. The
// counter follows the clock, and is put ahead of it for numbers in stock by no more than maxAhead.
func (p *pot) draw(r *backend.Request, clock int64) (backend.Token, int, error) {
	reserve := backend.Token(max(r.Reserve, 0))
	if r.Mode == backend.Reader { // they have one number, and not several
		reserve = 0
	}
	t := max(p.next, r.Floor+1)
	if t+reserve > p.last {
		if clock > maxClock {
			clock = 0
		}
		if err := backend.CheckFloor(r.Floor, max(p.last, clock)); err != nil {
			return 0, 0, err
		}
		t = max(p.last+1, r.Floor+1, clock)
		if t > maxToken {
			return 0, 0, backend.Invalid("no token is left for this name: the last one is %d, "+
				"and 2^53-1 is the greatest", max(p.last, r.Floor))
		}
		most := max(0, min(clock+maxAhead, maxToken)-t)
		reserve = min(reserve, most)
		p.sets, p.last = true, t+max(reserve, min(inStock, most))
	}
	p.next = t + reserve + 1
	return t, int(reserve), nil
}

// ops are the operations that make what was drawn the process's own.
func (p *pot) ops() []any {
	switch {
	case !p.known:
		return nil
	case p.sets:
		return p.set(p.bucket.path, p.last)
	}
	return []any{&zk.CheckVersionRequest{Path: p.bucket.path, Version: p.version}}
}

// after is what is known once that is done.
func (p *pot) after() draws {
	d := p.draws
	if p.sets {
		d.version = d.following()
	}
	return d
}

// wrapping is the last version of a counter but one. Versions are counted in 32 bits and wrap; -1,
// the one before 0, would stand for any, and compare with nothing.
const wrapping = -2

// set are the operations that set a counter which has not changed since. Nobody ever sees it at the
// version -1.
func (d draws) set(path string, last backend.Token) []any {
	ops := []any{&zk.SetDataRequest{Path: path, Data: number(last), Version: d.version}}
	if d.version == wrapping {
		ops = append(ops, &zk.SetDataRequest{Path: path, Data: number(last), Version: -1})
	}
	return ops
}

// following is the version of a counter that was set.
func (d draws) following() int32 {
	if d.version == wrapping {
		return 0
	}
	return d.version + 1
}

// clock estimates the clock of the servers, in microseconds, from their answers: it is never ahead
// of the clock of the one that gave the last. Without an answer it is 0.
type clock struct {
	mu   sync.Mutex
	at   backend.Instant
	said int64
}

// heard takes in the time that a server gave to a change, in milliseconds.
func (c *clock) heard(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, said := backend.Now(), ms*1000
	since := now.Sub(c.at)
	if !c.at.IsZero() && since < time.Second && c.said+since.Microseconds() > said {
		return // this answer was longer on its way
	}
	c.at, c.said = now, said
}

// now is the estimate; known is false without an answer in the last hour.
func (c *clock) now() (us int64, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.at.IsZero() {
		return 0, false
	}
	since := c.at.Elapsed()
	return c.said + since.Microseconds(), since < time.Hour
}

// time returns the servers' clock in microseconds. It asks only if it has not heard of it for long.
func (s *session) time(ctx context.Context) (int64, error) {
	if us, known := s.st.clock.now(); known {
		return us, nil
	}
	err := s.ensured(ctx, func() error { return s.touch(ctx) })
	us, _ := s.st.clock.now()
	return us, err
}

// record is what a holder's node has, as JSON. Who waits for the node's end learns what the
// holder's grant has made of the counter.
type record struct {
	Token   backend.Token `json:"token"`
	Version int32         `json:"version"`        // that the counter has with it
	Last    backend.Token `json:"last"`           // the counter's value
	Both    string        `json:"both,omitempty"` // the migration of a holder in backend.PhaseBoth
	Owner   string        `json:"owner"`
}

// holding is the record of a request that is granted.
func holding(r *backend.Request, t backend.Token, counter draws) record {
	rec := record{Token: t, Version: counter.version, Last: counter.last, Owner: r.Owner}
	if r.Phase == backend.PhaseBoth {
		rec.Both = r.Move
	}
	return rec
}

func readRecord(data []byte) (r record, ok bool) {
	err := json.Unmarshal(data, &r)
	return r, err == nil && r.Token > 0 && r.Last >= r.Token
}

// passing is what a lock's node has, as JSON. A release leaves there for the next in the queue whose it
// was, and what is known of the counter; a reader that draws a number beside others, for its floor,
// leaves that number for all who join later.
type passing struct {
	Nonce   string        `json:"nonce,omitempty"`
	Version int32         `json:"version,omitempty"`
	Last    backend.Token `json:"last,omitempty"`
	Era     backend.Token `json:"era,omitempty"`
}

// readPassing reads one; what is none says nothing.
func readPassing(data []byte) (p passing) {
	if json.Unmarshal(data, &p) != nil {
		return passing{}
	}
	return p
}

// encoded is a record or a passing as a node has it.
func encoded(v any) []byte {
	data, _ := json.Marshal(v) // of strings and numbers: never fails
	return data
}

func number(t backend.Token) []byte { return strconv.AppendInt(nil, t, 10) }
