package natskv

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fencelock/fencelock/backend"
)

// renewPlace is when a waiter renews its place in the queue.
const renewPlace = 2 * time.Second

// Acquire implements backend.Driver: one publish if the lock is free.
func (d *Driver) Acquire(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	if r.Wait {
		return d.await(ctx, r)
	}
	g, _, err := d.ask(ctx, r, true)
	if err == nil && g.Token == 0 {
		err = backend.ErrLocked
	}
	return g, err
}

// await looks until the lock is r's, woken by what the stream stores about it.
func (d *Driver) await(ctx context.Context, r *backend.Request) (backend.Grant, error) {
	wake, forget := d.link.wakes()
	defer forget()
	sub, err := d.nc.Subscribe(d.pushed(d.key(r.Name)), func(m *nats.Msg) {
		if myTurn(m, r.Nonce) {
			poke(wake)
		}
	})
	if err != nil {
		return backend.Grant{}, err
	}
	defer func() { _ = sub.Unsubscribe() }() // a connection that is closed has no subscriptions
	var g backend.Grant
	first := true
	err = backend.Wait(ctx, wake, func(ctx context.Context) (bool, time.Duration, error) {
		var next time.Duration
		var err error
		g, next, err = d.ask(ctx, r, first)
		first = false
		return g.Token > 0, next, err
	})
	return g, err
}

// myTurn reports whether a stored record is worth a look: there is no holder, and nobody before nonce.
func myTurn(m *nats.Msg, nonce string) bool {
	rec, err := decode(m.Data, time.Now())
	return err != nil || rec.Holder == nil && rec.place(nonce) <= 0
}

// ask takes the lock if it is r's turn; the grant has no token otherwise, and next says when to look again.
func (d *Driver) ask(ctx context.Context, r *backend.Request, guess bool) (g backend.Grant, next time.Duration, err error) {
	err = d.change(ctx, r.Name, guess, func(rec *record, c clock) (bool, error) {
		now := c.now()
		g, next = backend.Grant{}, 0
		if rec.outcome(r.Nonce) != nil {
			return false, backend.ErrLost
		}
		again := rec.holds(r.Nonce, now) && rec.Token > c.floor
		rec.tidy(now)
		if again || rec.Holder == nil && (len(rec.Queue) == 0 || rec.Queue[0].Nonce == r.Nonce) {
			if !again { // sent again it keeps its token
				rec.Token = max(rec.Token, now-1, c.floor, r.Floor) + 1
			}
			rec.Holder = &holder{Nonce: r.Nonce, Owner: r.Owner, Keep: (r.TTL + r.Grace).Microseconds()}
			rec.leave(r.Nonce)
			g = backend.Grant{Token: rec.Token, Asked: backend.Now()}
			return true, nil
		}
		if !r.Wait {
			return false, nil
		}
		next = renewPlace
		if rec.Holder != nil {
			next = min(next, rec.left(now))
		} else { // the first in the queue may be dead
			next = min(next, time.Duration(rec.Queue[0].Seen-now)*time.Microsecond+waiterLife)
		}
		return rec.queueUp(r.Nonce, now), nil
	})
	if err != nil {
		return backend.Grant{}, 0, err
	}
	return g, next, nil
}

// queueUp gives nonce a place, or renews it when it is due, and reports whether anything changed.
func (r *record) queueUp(nonce string, now int64) bool {
	i := r.place(nonce)
	if i < 0 {
		r.Queue = append(r.Queue, waiter{Nonce: nonce})
		return true
	}
	w := &r.Queue[i]
	if w.Seen+(renewPlace-100*time.Millisecond).Microseconds() > now {
		return false
	}
	w.Seen = 0
	return true
}

// change reads a name's record, lets step change it, and writes it if it is still the one that was read; otherwise once
// more. step returns whether there is anything to write. With guess a name that this driver does not know is
// taken to have no record at first: a publish that expects none is refused if there is one.
//
// A request whose outcome is unknown is sent a second time: the first copy can no longer be applied then, or
// the second finds it applied.
func (d *Driver) change(ctx context.Context, name string, guess bool, step func(*record, clock) (bool, error)) error {
	return d.twice(ctx, func(ctx context.Context) error {
		c, err := d.calibrated(ctx)
		if err != nil {
			return err
		}
		v, known := d.known.get(name)
		for known = known || guess; ; known, guess = false, false {
			if !known {
				if v, err = d.read(ctx, name); err != nil {
					return err
				}
			}
			write, err := step(&v.record, c)
			if err == nil && write {
				err = d.write(ctx, name, v, c)
			} else if known { // a guess is good enough to write on, for that is refused if it is wrong
				continue
			}
			if !errors.Is(err, errMoved) {
				return err
			}
		}
	})
}
