package redis

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Acquire implements backend.Driver: one script in one round trip if the lock
// is free. A waiter subscribes before it joins the queue.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	a := &attempt{d: d, r: r, keys: keysOf(d.prefix + r.Name)}
	var outage error
	if !r.Wait || !d.hubs.subscribed(a.keys) {
		res, err := a.first(ctx)
		switch {
		case err == nil && res.granted:
			return a.grant, nil
		case err == nil && !r.Wait:
			return backend.Grant{}, backend.ErrLocked
		case err != nil && (!r.Wait || backend.Final(err)):
			return backend.Grant{}, err
		}
		outage = err
	}
	w := d.hubs.waiter(r.Nonce)
	defer w.leave()
	err := backend.Wait(ctx, w.wake, func(ctx context.Context) (bool, time.Duration, error) {
		if err := w.join(ctx, a.keys); err != nil {
			if outage != nil {
				err = outage // says more than that there was no answer
			}
			return false, 0, err
		}
		res, err := a.ask(ctx, true)
		outage = err
		return res.granted, res.look, err
	})
	if err != nil {
		return backend.Grant{}, err
	}
	return a.grant, nil
}

// first is the ask of a lock that is probably free. Before a wait it is cut short if there is no answer, for
// the wait has its own patience.
func (a *attempt) first(ctx context.Context) (answer, error) {
	if a.r.Wait && !a.d.prompt {
		limited, cancel := context.WithTimeout(ctx, promptMost)
		defer cancel()
		ctx = limited
	}
	return a.ask(ctx, false)
}

// attempt is one acquisition.
type attempt struct {
	d      *Driver
	r      *backend.Request
	keys   keys
	ticket int64 // the place in the queue, kept if the server forgets it
	grant  backend.Grant
}

// answer is the server's to one request of an attempt.
type answer struct {
	granted bool
	look    time.Duration // when to look again
}

// ask sends the acquire script; queue: join the queue if the lock is held. It is sent again if the gates are not those that
// this process knows.
func (a *attempt) ask(ctx context.Context, queue bool) (answer, error) {
	known := a.d.knownGates()
	for range gateTries {
		gated, refusal := backend.Admit(known.gates, a.r)
		asked := backend.Now()
		reply, err := a.d.send(ctx, a.call(known.version, refusal != nil, queue))
		if err != nil {
			if !backend.Final(err) {
				a.d.setDoubt(a.r.Nonce)
			}
			return answer{}, err
		}
		res, _ := reply.([]any)
		if token, reserved, ok := granted(reply, res); ok {
			a.grant = backend.Grant{Token: token, Reserved: reserved, Asked: asked, Ungated: a.r.Move != "" && !gated}
			return answer{granted: true}, nil
		}
		if len(res) == 0 {
			return answer{}, unexpected(reply)
		}
		switch res[0] {
		case "gates":
			if known, err = a.d.learnGates(ctx, a.d.gatesOf(a.keys)); err != nil {
				return answer{}, err
			}
			continue
		case "refused":
			return answer{}, refusal
		case "badgate":
			return answer{}, badGate(a.d.gatesOf(a.keys))
		case "gone":
			return answer{}, fmt.Errorf("the request was abandoned: %w", backend.ErrLost)
		case "locked":
			return answer{}, nil
		case "queued":
			return a.queued(res)
		}
		return answer{}, unexpected(reply)
	}
	return answer{}, errGates
}

// call makes the operation of run.lua; refused: the gates of this version refuse the request.
func (a *attempt) call(version string, refused, queue bool) *call {
	r := a.r
	b := make([]byte, 0, 128)
	if refused {
		b = append(b, '!')
	}
	if version == "" {
		version = "-"
	}
	b = append(append(b, version...), ' ')
	b = append(strconv.AppendInt(b, millis(r.TTL+r.Grace), 10), ' ')
	switch {
	case queue:
		b = fmt.Appendf(b, "w:%d:%d:%d", a.ticket, r.Floor, r.Reserve)
	case r.Floor > 0 || r.Reserve > 0:
		b = fmt.Appendf(b, "t:0:%d:%d", r.Floor, r.Reserve)
	default:
		b = append(b, 't')
	}
	b = append(append(b, ' '), mark(r)...)
	return &call{script: runScript, op: a.keys.operation(true, r.Nonce, string(b)), once: r.Wait && !queue}
}

// granted reads token, or {token, reserved}.
func granted(reply any, res []any) (token backend.Token, reserved int, ok bool) {
	if len(res) != 2 {
		token, ok = reply.(int64)
		return token, 0, ok
	}
	token, ok = res[0].(int64)
	n, _ := res[1].(int64)
	return token, int(n), ok
}

// queued reads {"queued", ticket, pttl, foreign}.
func (a *attempt) queued(res []any) (answer, error) {
	if len(res) != 4 {
		return answer{}, unexpected(res)
	}
	ticket, ok1 := res[1].(string)
	left, ok2 := res[2].(int64)
	foreign, ok3 := res[3].(int64)
	n, err := strconv.ParseInt(ticket, 10, 64)
	if !ok1 || !ok2 || !ok3 || err != nil {
		return answer{}, unexpected(res)
	}
	a.ticket = n
	look := floor
	if left >= 0 {
		look = min(look, time.Duration(left)*time.Millisecond+5*time.Millisecond)
	}
	if foreign == 1 {
		look = min(look, foreignFloor)
	}
	return answer{look: look}, nil
}
