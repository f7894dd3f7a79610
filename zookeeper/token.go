package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// maxToken is below 2^53; maxClock keeps a clock that is far off from using up the numbers.
const (
	maxToken = 1<<53 - 1
	maxClock = 1 << 52
)

// bucket is the counter of the names of one bucket: a node whose data is the last token. A grant replaces it, on the
// condition that its version is the one that the client has seen: so the token is known before the request
// is sent, stands in the holder's node, and is part of the grant.
type bucket struct {
	path string
	turn chan struct{} // of size 1: the grant that is under way has it

	mu      sync.Mutex
	known   bool
	version int32
	last    backend.Token
}

// enter waits for the bucket; leave must be called.
func (b *bucket) enter(ctx context.Context) error {
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *bucket) leave() { <-b.turn }

// load returns the version that a grant must find; it asks the server if it is not known.
func (b *bucket) load(ctx context.Context, s *session) (int32, error) {
	b.mu.Lock()
	known, version := b.known, b.version
	b.mu.Unlock()
	if known {
		return version, nil
	}
	for {
		version, err := b.read(ctx, s)
		if !errors.Is(err, zk.ErrNoNode) {
			return version, err
		}
		if err := s.ensured(ctx, func() error {
			_, err := call(ctx, s, func(c *zk.Conn) (string, error) {
				return c.Create(b.path, []byte("0"), zk.FlagPersistent, s.d.acl)
			})
			return err
		}); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return 0, err
		}
	}
}

func (b *bucket) read(ctx context.Context, s *session) (int32, error) {
	n, err := get(ctx, s, b.path)
	if err != nil {
		return 0, err
	}
	last, err := strconv.ParseInt(string(n.data), 10, 64)
	if err != nil || last < 0 {
		return 0, backend.Invalid("the node %s does not hold a token but something that another program put there", b.path)
	}
	b.set(n.stat.Version, last)
	return n.stat.Version, nil
}

// set takes in what the server has. The last token never falls: it may have lost its data.
func (b *bucket) set(version int32, last backend.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known, b.version, b.last = true, version, max(b.last, last)
}

// hint takes in what a holder's node says: it may be newer than what is known.
func (b *bucket) hint(version int32, last backend.Token) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last > b.last {
		b.known, b.version, b.last = true, version, last
	}
}

// forget makes the next grant ask the server.
func (b *bucket) forget() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.known = false
}

// drawn is the last token, as far as it is known.
func (b *bucket) drawn() backend.Token {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// next is the token of the next grant.
func (b *bucket) next(floor backend.Token, clock int64) (backend.Token, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if clock > maxClock {
		clock = 0
	}
	t := max(b.last+1, floor+1, clock)
	if t > maxToken {
		return 0, backend.Invalid("no token is left for this name: the last one is %d, and 2^53-1 is the greatest", max(b.last, floor))
	}
	return t, nil
}

// clock estimates the clock of the servers, in microseconds, from their answers: it is never ahead of the clock of the
// one that gave the last. Without an answer it is 0.
type clock struct {
	mu   sync.Mutex
	at   backend.Instant
	said int64
}

// heard takes in the time that a server gave to a change, in milliseconds.
func (c *clock) heard(ms int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.said = backend.Now(), ms*1000
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

// bothMark stands in a record before the migration of a holder in backend.PhaseBoth.
const bothMark = "both:"

// record is the text of a holder's node. The first line is the token, the version that the counter got with it, and in PhaseBoth
// which migration's; the owner is the rest.
type record struct {
	token   backend.Token
	version int32
	both    bool
	move    string
	owner   string
}

// holding is the record of a request that is granted.
func holding(r *backend.Request, t backend.Token, version int32) record {
	rec := record{token: t, version: version, owner: r.Owner}
	if r.Phase == backend.PhaseBoth {
		rec.both, rec.move = true, r.Move
	}
	return rec
}

func (r record) bytes() []byte {
	mark := ""
	if r.both {
		mark = " " + bothMark + encode(r.move)
	}
	return fmt.Appendf(nil, "%d %d%s\n%s", r.token, r.version, mark, r.owner)
}

func readRecord(data []byte) (record, bool) {
	first, owner, whole := strings.Cut(string(data), "\n")
	words := strings.Split(first, " ")
	r := record{owner: owner}
	if len(words) == 3 {
		move, marked := strings.CutPrefix(words[2], bothMark)
		plain, ok := decode(move)
		r.both, r.move, words = true, plain, words[:2]
		whole = whole && marked && ok
	}
	if !whole || len(words) != 2 {
		return record{}, false
	}
	version, err := strconv.ParseInt(words[1], 10, 32)
	if err != nil {
		return record{}, false
	}
	r.version = int32(version)
	if r.token, err = strconv.ParseInt(words[0], 10, 64); err != nil {
		return record{}, false
	}
	return r, true
}
