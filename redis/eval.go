package redis

import (
	"context"
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

// call is one run of a script, or one operation of run.lua, of which many can go in one command. All that is sent for it lies in one
// piece of memory, since go-redis takes pointers: a lock that nobody else wants is made of few allocations.
type call struct {
	script *script
	byText bool  // the server is sent the script itself
	once   bool  // no second send if there is no answer within promptMost
	args   []any // of a script: the number of keys, the keys, the arguments

	op    operation // of run.lua
	space [13]any
	alone [1]*call

	reply any
	err   error
	ctx   deadlineCtx
	turn  chan bool // for one that stands in a lane: true, it leads; false, it was sent
}

// again is the call as it was before it was sent.
func (c *call) again(byText bool) *call {
	return &call{script: c.script, byText: byText, args: c.args, op: c.op}
}

// run runs a script. It returns when ctx ends, at most promptMost later.
func (d *Driver) run(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	c := &call{script: s, args: make([]any, 0, 1+len(keys)+len(args))}
	c.args = append(c.args, len(keys))
	for i := range keys {
		c.args = append(c.args, &keys[i])
	}
	c.args = append(c.args, args...)
	return d.send(ctx, c)
}

// carry sends operations in one command, of which the first r are releases, and gives each its answer.
func (d *Driver) carry(ctx context.Context, all []*call, r int) error {
	cmd := d.command(ctx, all, r)
	cmd.SetFirstKeyPos(3)
	err := d.client.Process(ctx, cmd)
	take(cmd, all)
	return err
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
	again := c.again(c.byText)
	return d.outcome(ctx, again, d.sendAside(ctx, again))
}

// outcome is the server's answer; one that has not the script is told it.
func (d *Driver) outcome(ctx context.Context, c *call, err error) (any, error) {
	switch {
	case err == nil:
		return c.reply, nil
	case goredis.HasErrorPrefix(err, "NOSCRIPT"):
		return d.send(ctx, c.again(true))
	}
	return nil, d.meaning(err)
}

// sendPromptly sends a call that has promptMost to be answered.
func (d *Driver) sendPromptly(ctx context.Context, c *call) error {
	at := time.Now().Add(promptMost)
	if end, ok := ctx.Deadline(); ok && end.Before(at) {
		return d.sendAlone(ctx, c) // others shall not end with it
	}
	c.ctx.Context, c.ctx.at = ctx, at
	if d.cluster != nil || c.script != runScript {
		return d.sendAlone(&c.ctx, c)
	}
	return d.lane.send(c)
}

// sendAlone sends a call on this goroutine.
func (d *Driver) sendAlone(ctx context.Context, c *call) error {
	if c.script == runScript {
		c.alone[0] = c
		_ = d.carry(ctx, c.alone[:], 1-flag(c.op.acquires)) // it is the call's
		return c.err
	}
	how, what := "evalsha", c.script.hash
	if c.byText {
		how, what = "eval", c.script.text
	}
	cmd := goredis.NewCmd(ctx, append([]any{how, what}, c.args...)...)
	cmd.SetFirstKeyPos(3)
	c.err = d.client.Process(ctx, cmd)
	c.reply = cmd.Val()
	return c.err
}

// sendAside sends a call on a goroutine of its own.
func (d *Driver) sendAside(ctx context.Context, c *call) error {
	done := make(chan error, 1)
	d.flying.Go(func() { done <- d.sendAlone(ctx, c) })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
