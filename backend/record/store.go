// Package record makes a whole backend of a store that has one thing: a value under a key that can
// be written on the condition that it is still the one that was read.
//
// Each name is one key, and all that is known of it is one small JSON record there: the holder, the
// queue, the last token, and how the last acquisitions ended. Every change is a conditional write of
// the whole record, so each is one atomic step, and the store is the judge.
//
// # What comes of it
//
// One holder, as long as the store keeps what it has acknowledged. A lease runs from the moment at
// which the store wrote the record, by the store's clock; clients compare with their own estimate of
// that clock, which is never ahead of it. A clock of the store that is set forward ends leases early
// for those who wait.
//
// First come, first served among live waiters: the queue is a part of the record. A waiter that has
// not renewed its place for 4.5 s is passed over. Waiters look when the record changes, and every
// 2 s.
//
// Tokens follow the store's clock in µs and, while the record lasts (a minute after its last use),
// the last token. They rise over a loss of the data. A clock of the store that is set back by more
// than a minute can send back the tokens of a name that nobody used meanwhile.
//
// A released or abandoned acquisition is remembered for a minute, and through the 32 next of its
// name. A write is about one key, so a gate cannot be compared in the same step: such a backend takes
// no part in migrations (backend.Mover).
//
// # What is in the store
//
// The key of a name is p<prefix>.n<name>, with prefix and name in hexadecimal. Of the record a look
// behind the driver's back (conformance.Store) needs
//
//	{"holder": {"since": 0, "keep": 30000000}, "queue": [{}]}
//
// in which since, in µs since 1970, is the beginning of the lease, or 0: when the store wrote the
// record. keep is its length in µs. A record without holder and queue is a free lock that the store
// will forget.
package record

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// ErrMoved is Put's answer where the key does not have that version any more.
var ErrMoved = errors.New("another client has changed the record")

// A Value is what a KV has under a key. The zero Value stands for a key that is not there: deleted,
// forgotten, or never written.
type Value struct {
	Data []byte // empty: there is none
	// Version is another one for every write of one [KV.Epoch], also after the key was deleted.
	// Where the Epoch does not tell that the store lost data or got an older copy back, it is
	// another one through that too: clients remember versions, and an old one must not match a new
	// value. A random number does, a counter in the row does not.
	Version string
	// At is when the store wrote the value, by its own clock: no earlier than Put was called, and
	// no later than others can read the value.
	At time.Time
}

// A KV is a store of values. A key is letters, digits and dots, and their case counts. Each method
// does one thing once, and returns when ctx ends. An error but ErrMoved and [backend.ErrInvalid]
// means that the outcome is unknown. Where the store says that it did nothing because it was busy,
// a method may try again until ctx ends. Methods are called from many goroutines at once.
type KV interface {
	// Get returns the value of a key, as of a moment after the call.
	Get(ctx context.Context, key string) (Value, error)
	// Put writes data, which is never empty, if the key still has this version, and returns the new
	// one. Version "" says that the key must not be there. The store may forget the key once the
	// value has been there for keep, which is more than a minute and in whole seconds. Nothing else
	// deletes keys: a store that does not forget grows with every name that was ever used.
	Put(ctx context.Context, key string, data []byte, version string, keep time.Duration) (string, error)
	// Now returns a moment by the store's clock that lies between the call and the return. It is
	// time.Now where the store's clock is that of the machine.
	Now(ctx context.Context) (time.Time, error)
	// Epoch is another number once what was known of the store may be wrong, as after a reconnection.
	// It may be constant where there is no connection to lose.
	Epoch() uint64
	// Keys yields the keys that begin with space, which ends with the only dot that they have, in
	// any order. The loop may call other methods.
	Keys(ctx context.Context, space string) iter.Seq2[string, error]
}

// A Watcher is a KV that tells of changes by itself. Of another one, the keys that somebody waits
// for are read every 20 ms.
type Watcher interface {
	// Watch calls changed with each value that the key gets, until stop, on any goroutine. It may
	// miss some, for a waiter that it does not wake looks every 2 s, and begin with the value that
	// is there. A key that is deleted gets the zero Value. Only Data counts. changed never blocks,
	// and may be called once more after stop. A Locker watches a name once, however many wait for
	// it there.
	Watch(key string, changed func(Value)) (stop func(), err error)
}

// Driver is a backend over a KV. It implements backend.Driver.
type Driver struct{ *store }

// New returns the backend over kv with these traits: FIFO, Grace, MinHold and Anchored tokens are
// what the package gives, DeadWaiter is at least 5 s, and Revoked what it is to be. prefix is the
// keyspace, and may be empty.
func New(kv KV, prefix string, t backend.Traits) (*Driver, error) {
	if err := backend.CheckPrefix(prefix); err != nil {
		return nil, err
	}
	s := &store{kv: kv, traits: t, space: "p" + encode(prefix) + "."}
	s.watch = s.poll
	if w, ok := kv.(Watcher); ok {
		s.watch = w.Watch
	}
	s.polling, s.stop = context.WithCancel(context.Background())
	return &Driver{s}, nil
}

// Owns makes Close call end, which closes the client that a URL has opened. It is called before the
// driver is used.
func (d *Driver) Owns(end func() error) { d.end = end }

// store is a backend.Driver.
type store struct {
	kv     KV
	traits backend.Traits
	space  string
	known  known
	watch  func(key string, changed func(Value)) (stop func(), err error)
	end    func() error // nil: the client is the caller's

	polling context.Context
	stop    context.CancelFunc // ends the polls
	polls   sync.WaitGroup

	mu    sync.Mutex
	clock clock
}

func (s *store) key(name string) string { return s.space + "n" + encode(name) }

// Traits implements backend.Driver.
func (s *store) Traits() backend.Traits { return s.traits }

// Calls implements backend.Driver. A write is about one name.
func (s *store) Calls() backend.Calls { return backend.Calls{Most: 1} }

// Close implements backend.Driver.
func (s *store) Close() error {
	s.stop()
	s.polls.Wait()
	if s.end == nil {
		return nil
	}
	return s.end()
}

// Enter implements backend.Driver. The waiter looks when there is no holder, and nobody before it.
func (s *store) Enter(_ context.Context, c *backend.Claim) error {
	if c.Place != nil {
		return nil
	}
	stop, err := s.watch(s.key(c.Name), func(v Value) {
		rec, err := decode(v.Data, v.At)
		if err != nil || rec.Holder == nil && rec.place(c.Nonce) <= 0 {
			c.Wake(0)
		}
	})
	if err == nil {
		c.Place = stop
	}
	return err
}

// pollEvery is how often the key of a KV that is no Watcher is read.
const pollEvery = 20 * time.Millisecond

// poll is what [Watcher] is, of a KV that is none.
func (s *store) poll(key string, changed func(Value)) (func(), error) {
	ctx, stop := context.WithCancel(s.polling)
	s.polls.Go(func() {
		tick := time.NewTicker(pollEvery)
		defer tick.Stop()
		for seen := ""; ; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			v, err := s.kv.Get(ctx, key) // after an error the next look tells
			if err == nil && v.Version != seen {
				seen = v.Version
				changed(v)
			}
		}
	})
	return stop, nil
}

// unwatch ends what Enter began.
func unwatch(c *backend.Claim) {
	if stop, ok := c.Place.(func()); ok {
		stop()
		c.Place = nil
	}
}

// Ask implements backend.Driver.
func (s *store) Ask(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		if c.Err = s.ask(ctx, c); c.Err == nil {
			unwatch(c)
		}
	}
}

// ask takes the lock if it is free and c's turn. A name that this process does not know is taken to
// have no record at first: the write is refused if there is one.
func (s *store) ask(ctx context.Context, c *backend.Claim) error {
	granted := false
	err := s.change(ctx, c.Name, c.Nonce, c.Place == nil, func(rec *record, k clock) (bool, error) {
		now := k.now()
		granted, c.Next = false, 0
		if rec.outcome(c.Nonce) != nil {
			return false, backend.ErrLost
		}
		again := rec.holds(c.Nonce, now)
		rec.tidy(now)
		if again || rec.Holder == nil && (len(rec.Queue) == 0 || rec.Queue[0].Nonce == c.Nonce) {
			if !again { // sent again it keeps its token
				if err := backend.CheckFloor(c.Floor, max(now, rec.Token)); err != nil {
					return false, err
				}
				rec.Token = max(rec.Token, now-1, c.Floor) + 1
			}
			rec.Holder = &holder{Nonce: c.Nonce, Owner: c.Owner, Keep: (c.TTL + c.Grace).Microseconds()}
			rec.leave(c.Nonce)
			c.Grant = backend.Grant{Token: rec.Token, Asked: backend.Now()}
			granted = true
			return true, nil
		}
		if !c.Wait || c.Place == nil {
			return false, nil
		}
		c.Next = renewPlace
		if rec.Holder != nil {
			c.Next = min(c.Next, rec.left(now))
		} else { // the first in the queue may be dead
			c.Next = min(c.Next, time.Duration(rec.Queue[0].Seen-now)*time.Microsecond+waiterLife)
		}
		return rec.queueUp(c.Nonce, now), nil
	})
	if err == nil && !granted {
		c.Queued = c.Place != nil
		return backend.ErrLocked
	}
	c.Next = 0 // a place that could not be written asks again soon
	return err
}

// Leave implements backend.Driver.
func (s *store) Leave(ctx context.Context, cs []*backend.Claim) {
	for _, c := range cs {
		unwatch(c)
		c.Err = s.change(ctx, c.Name, c.Nonce, false, func(rec *record, k clock) (bool, error) {
			if e := rec.outcome(c.Nonce); e != nil {
				if c.Held && !e.Released {
					return false, backend.ErrLost
				}
				return false, nil
			}
			ours := rec.Holder != nil && rec.Holder.Nonce == c.Nonce
			if c.Held && !rec.holds(c.Nonce, k.now()) {
				return false, backend.ErrLost
			}
			if ours {
				rec.Holder = nil
			}
			if !ours && !c.Unsure && rec.place(c.Nonce) < 0 {
				return false, nil
			}
			rec.leave(c.Nonce)
			if ours || c.Unsure {
				rec.end(c.Nonce, c.Held)
			}
			return true, nil
		})
	}
}

// atOnce is how many claims of one Keep are under way at once.
const atOnce = 32

// Keep implements backend.Driver: one write for each claim, many at once.
func (s *store) Keep(ctx context.Context, cs []*backend.Claim, extend bool) []error {
	errs := make([]error, len(cs))
	places := make(chan struct{}, atOnce)
	var all sync.WaitGroup
	for i, c := range cs {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if !extend {
				rec, now, err := s.look(ctx, c.Name)
				if err == nil && !rec.holds(c.Nonce, now) {
					err = backend.ErrLost
				}
				errs[i] = err
				return
			}
			errs[i] = s.change(ctx, c.Name, c.Nonce, false, func(rec *record, k clock) (bool, error) {
				if !rec.holds(c.Nonce, k.now()) {
					return false, backend.ErrLost
				}
				rec.Holder.Since, rec.Holder.Keep = 0, (c.TTL + c.Grace).Microseconds()
				return true, nil
			})
		})
	}
	all.Wait()
	return errs
}

// Break implements backend.Driver.
func (s *store) Break(ctx context.Context, name string) error {
	return s.change(ctx, name, "", false, func(rec *record, _ clock) (bool, error) {
		if rec.Holder == nil {
			return false, nil
		}
		rec.end(rec.Holder.Nonce, false)
		rec.Holder = nil
		return true, nil
	})
}

// Look implements backend.Driver.
func (s *store) Look(ctx context.Context, r backend.Range) iter.Seq2[backend.Info, error] {
	return func(yield func(backend.Info, error) bool) {
		if r.Name != "" {
			yield(s.describe(ctx, r.Name))
			return
		}
		for key, err := range s.kv.Keys(ctx, s.space) {
			if err != nil {
				yield(backend.Info{}, err)
				return
			}
			name, ok := decodeName(strings.TrimPrefix(key, s.space))
			if !ok || !strings.HasPrefix(name, r.Prefix) {
				continue
			}
			i, err := s.describe(ctx, name)
			if err == nil && !i.Held && i.Waiters == 0 {
				continue
			}
			if !yield(i, err) || err != nil {
				return
			}
		}
	}
}

func (s *store) describe(ctx context.Context, name string) (backend.Info, error) {
	rec, now, err := s.look(ctx, name)
	if err != nil {
		return backend.Info{}, err
	}
	rec.tidy(now)
	i := backend.Info{Name: name, Waiters: len(rec.Queue)}
	if h := rec.Holder; h != nil {
		i.Held, i.Owner, i.Token, i.ExpiresIn = true, h.Owner, rec.Token, rec.left(now)
	}
	return i, nil
}

// look reads a record and the time.
func (s *store) look(ctx context.Context, name string) (record, int64, error) {
	k, err := s.calibrated(ctx)
	if err != nil {
		return record{}, 0, err
	}
	v, err := s.read(ctx, name)
	return v.record, k.now(), err
}

// version is a record, and the version that it has in the store.
type version struct {
	record
	version string
	epoch   uint64 // since when: in another one the same version may be that of another value
}

func (s *store) read(ctx context.Context, name string) (version, error) {
	epoch := s.kv.Epoch()
	v, err := s.kv.Get(ctx, s.key(name))
	if err != nil {
		return version{}, err
	}
	rec, err := decode(v.Data, v.At)
	if err != nil {
		return version{}, fmt.Errorf("%w: key %s, under which the lock %q is kept, was not written by this driver; "+
			"delete the key if nobody needs it", err, s.key(name), name)
	}
	return version{rec, v.Version, epoch}, nil
}

// change reads a name's record, lets step change it for nonce, and writes it if it is still the one
// that was read; otherwise once more. step returns whether there is anything to write.
func (s *store) change(
	ctx context.Context, name, nonce string, guess bool, step func(*record, clock) (bool, error),
) error {
	k, err := s.calibrated(ctx)
	if err != nil {
		return err
	}
	v, known := s.known.get(name)
	known = known || guess
	if v.isAnothers(nonce) { // the store knows when its lease began
		known = false
	}
	for ; ; known = false {
		if !known {
			if v, err = s.read(ctx, name); err != nil {
				return err
			}
		}
		if v.isAnothers(nonce) && v.left(k.now()) <= 0 { // unless the store's clock was set back since k
			if k, err = s.calibrate(ctx); err != nil {
				return err
			}
		}
		write, err := step(&v.record, k)
		if err == nil && write {
			err = s.write(ctx, name, v, k)
		} else if known { // a guess is good enough to write on, which is refused if it is wrong
			continue
		}
		if !errors.Is(err, ErrMoved) {
			return err
		}
	}
}

func (s *store) write(ctx context.Context, name string, v version, k clock) error {
	now := k.now()
	data, err := json.Marshal(v.record)
	if err != nil {
		return err
	}
	s.known.forget(name)
	epoch := s.kv.Epoch()
	if v.version != "" && v.epoch != epoch {
		return ErrMoved
	}
	next, err := s.kv.Put(ctx, s.key(name), data, v.version, v.life(now))
	if err == nil {
		s.known.put(name, version{v.record, next, epoch}, now)
	}
	return err
}

// clockLife is how long a clock is used: a change of the store's clock takes so long to be noticed.
// slowClock is how slow an answer about it may be that is used again.
const clockLife, slowClock = 5 * time.Second, time.Second

// clock is the store's clock as far as this process knows it.
type clock struct {
	server time.Time
	at     backend.Instant // after server came, so that now is never ahead of the store
	epoch  uint64
}

// now is the store's time in µs since 1970, and not ahead of it.
func (k clock) now() int64 { return k.server.Add(k.at.Elapsed()).UnixMicro() }

// calibrated returns a clock that is at most clockLife old and of the present epoch: a store that
// has lost its data, or has them back from an older copy, is a new one.
func (s *store) calibrated(ctx context.Context) (clock, error) {
	epoch := s.kv.Epoch()
	s.mu.Lock()
	k := s.clock
	s.mu.Unlock()
	if !k.at.IsZero() && k.epoch == epoch && k.at.Elapsed() < clockLife {
		return k, nil
	}
	return s.calibrate(ctx)
}

// calibrate asks for the store's clock.
func (s *store) calibrate(ctx context.Context) (clock, error) {
	epoch := s.kv.Epoch()
	before := backend.Now()
	server, err := s.kv.Now(ctx)
	if err != nil {
		return clock{}, err
	}
	after := backend.Now()
	k := clock{server: server, at: after, epoch: epoch}
	if after.Sub(before) < slowClock {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.clock = k
	}
	return k, nil
}
