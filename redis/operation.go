package redis

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// operation is what run.lua does for one caller: it acquires, or releases or abandons.
type operation struct {
	acquires bool
	shared   string // what must be the same for all that go together: of acquires ARGV 2, of releases how ARGV 3 begins

	lock, counter, queue, tombstone, nonce string // as KEYS and ARGV have them
	tag                                    string
}

// plain is what releases share that leave no tombstone and are remembered; what else an operation has not is none.
var plain, none = "0 1", ""

// operation makes one, with all its texts in one piece of memory.
func (k keys) operation(acquires bool, nonce, shared string) operation {
	head := len(k.tag) + 6
	text := "fl\x00{" + k.tag + "}cfl\x00{" + k.tag + "}q" + k.lock + "fl\x00{" + k.tag + "}x" + nonce + ":"
	end := len(text) - 1
	tomb := 2*head + len(k.lock)
	return operation{acquires, shared, k.lock, text[:head], text[head:tomb], text[tomb:end], text[tomb+head:], k.tag}
}

// command makes the command of these operations, the first r of which are releases.
func (d *Driver) command(ctx context.Context, all []*call, r int) *goredis.Cmd {
	first, releases, acquires := all[0], all[:r], all[r:]
	args := first.space[:0]
	if len(all) > 1 {
		args = make([]any, 0, 8+6*len(all))
	}
	args = append(args, "evalsha", &runScript.hash, 0)
	if slices.ContainsFunc(all, func(c *call) bool { return c.byText }) {
		args[0], args[1] = "eval", &runScript.text
	}
	keys := len(args)
	for _, c := range releases {
		args = append(args, &c.op.lock)
	}
	for _, c := range acquires {
		args = append(args, &c.op.counter)
	}
	if len(acquires) > 0 {
		args = append(args, d.gatesIn(acquires[0].op.tag))
	}
	for _, c := range all {
		args = append(args, &c.op.queue)
	}
	for _, c := range acquires {
		args = append(args, &c.op.tombstone)
	}
	for _, c := range acquires {
		args = append(args, &c.op.lock)
	}
	ring, shared, rest := &none, &none, &d.rest
	if r > 0 {
		ring = d.ringIn(first.op.tag)
		if first.op.shared != plain {
			text := first.op.shared + (*rest)[len(plain):]
			rest = &text
		}
	}
	if len(acquires) > 0 {
		shared = &acquires[0].op.shared
	}
	if d.cluster != nil {
		args = append(args, first.op.others(ring)...)
	}
	args[2] = len(args) - keys
	args = append(args, ring, shared, rest)
	for _, c := range all {
		args = append(args, &c.op.nonce)
	}
	return goredis.NewCmd(ctx, args...)
}

// others returns the keys that one operation may need besides, which a cluster wants to be declared.
func (o *operation) others(ring *string) []any {
	more := []any{ours(o.tag) + "m" + o.lock}
	if !o.acquires {
		more = append(more, o.counter, o.tombstone, ring)
	}
	return more
}

// take hands out the replies of a command of these operations.
func take(cmd *goredis.Cmd, all []*call) {
	err := cmd.Err()
	replies, _ := cmd.Val().([]any)
	if err == nil && len(replies) != len(all) {
		err = unexpected(cmd.Val())
	}
	for i, c := range all {
		if c.err = err; err != nil {
			continue
		}
		c.reply = replies[i]
		if res, ok := c.reply.([]any); ok && len(res) == 2 && res[0] == "err" {
			c.err = fmt.Errorf("%v", res[1])
		}
	}
}

// ringMost is how long one ring of released nonces is in use.
const ringMost = time.Minute

// ring is the ring of released nonces that is in use.
type ring struct {
	number int64
	key    string // on a cluster without what goes before it in every slot
}

// ringIn returns the key of the ring that is in use, on a cluster in a slot.
func (d *Driver) ringIn(tag string) *string {
	n := int64(time.Since(d.began) / ringMost)
	r := d.ring.Load()
	if r == nil || r.number != n {
		r = &ring{n, "r" + d.process + ":" + strconv.FormatInt(n, 10)}
		if d.cluster == nil {
			r.key = ours(tags()[0]) + r.key
		}
		d.ring.Store(r)
	}
	if d.cluster == nil {
		return &r.key
	}
	key := ours(tag) + r.key
	return &key
}
