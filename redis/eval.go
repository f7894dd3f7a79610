package redis

import (
	"context"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// script is a Lua script, called by its hash.
type script struct {
	*goredis.Script
	text, hash string
}

func newScript(text string) *script {
	s := goredis.NewScript(text)
	return &script{s, text, s.Hash()}
}

// call is one run of a script. All that is sent for it lies in one piece of memory, since go-redis takes pointers: a
// lock that nobody else wants is made of few allocations.
type call struct {
	script *script
	once   bool // no second send if there is no answer within promptMost
	cmd    *goredis.Cmd
	args   []any

	text       [10]string // with the numbers: what args points to
	used       int        // of text
	ttl, floor int64
	space      [16]any
	ctx        deadlineCtx

	turn chan bool // for one that stands in a lane: true, it leads; false, it was sent
}

// begin starts the arguments of a run: EVALSHA, the hash and the number of keys, to be followed by them.
func (c *call) begin(s *script, keys int) {
	c.script = s
	c.args = append(c.space[:0], "evalsha", &s.hash, keys)
}

// words puts texts behind the arguments, at most ten in all.
func (c *call) words(texts ...string) {
	for _, t := range texts {
		c.text[c.used] = t
		c.args = append(c.args, &c.text[c.used])
		c.used++
	}
}

// byText makes a call of one that the server has no script for: it sends the script itself.
func (c *call) byText() *call {
	t := &call{script: c.script, once: c.once, args: slices.Clone(c.args)}
	t.args[0], t.args[1] = "eval", &c.script.text
	return t
}

// ready makes the command; a call that is sent again needs another.
func (c *call) ready(ctx context.Context) *goredis.Cmd {
	c.cmd = goredis.NewCmd(ctx, c.args...)
	c.cmd.SetFirstKeyPos(3)
	return c.cmd
}

// run runs a script. It returns when ctx ends, at most promptMost later.
func (d *Driver) run(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	c := &call{}
	c.begin(s, len(keys))
	for i := range keys {
		c.args = append(c.args, &keys[i])
	}
	c.args = append(c.args, args...)
	return d.send(ctx, c)
}

// send sends a call: at first on this goroutine, or with others in the lane, and if no answer comes for a while once more
// on a goroutine of its own, so that the end of ctx is heeded at once. A script must have the same effect sent twice as once.
func (d *Driver) send(ctx context.Context, c *call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if d.prompt {
		err := d.sendPromptly(ctx, c)
		if !timedOut(err) {
			return d.outcome(ctx, c, err)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case c.once:
			return nil, context.DeadlineExceeded
		}
	}
	again := &call{script: c.script, args: c.args}
	return d.outcome(ctx, again, d.sendAside(ctx, again))
}

// outcome is the server's answer; one that has not the script is told it.
func (d *Driver) outcome(ctx context.Context, c *call, err error) (any, error) {
	switch {
	case err == nil:
		return c.cmd.Val(), nil
	case goredis.HasErrorPrefix(err, "NOSCRIPT"):
		return d.send(ctx, c.byText())
	}
	return nil, d.meaning(err)
}

// sendPromptly sends a call that has promptMost to be answered.
func (d *Driver) sendPromptly(ctx context.Context, c *call) error {
	at := time.Now().Add(promptMost)
	if end, ok := ctx.Deadline(); ok && end.Before(at) {
		return d.client.Process(ctx, c.ready(ctx)) // others shall not end with it
	}
	c.ctx.Context, c.ctx.at = ctx, at
	if d.cluster != nil {
		return d.client.Process(&c.ctx, c.ready(&c.ctx))
	}
	return d.lane.send(c)
}

// sendAside sends a call on a goroutine of its own.
func (d *Driver) sendAside(ctx context.Context, c *call) error {
	done := make(chan error, 1)
	cmd := c.ready(ctx)
	d.flying.Go(func() { done <- d.client.Process(ctx, cmd) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
