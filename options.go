package fencelock

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// DefaultTTL is the TTL of a lease when neither the URL nor an option sets one.
const DefaultTTL = 30 * time.Second

// longest bounds every duration that a store is asked to keep.
const longest = 365 * 24 * time.Hour

// An Option sets one property of a Locker (as the default of its mutexes) or of one Mutex. Options
// of a Mutex win over those of Open and New, which win over keys of the URL; of two that contradict
// each other the later wins. One Mutex of a Locker that has them goes without by WithoutManualRenew,
// WithoutMaxHold, WithoutReentrancy, WithGrace(0), WithMinHold(0) and WithFloor(0). A bad value is
// reported as ErrInvalid: by Open and New, or by Lock and TryLock of the Mutex that it was given to.
type Option func(*settings) error

// settings are the values of all options.
type settings struct {
	ttl       time.Duration
	manual    bool
	maxHold   time.Duration
	owner     string
	grace     time.Duration
	minHold   time.Duration
	reentrant bool
	floor     Token
	mode      Mode
	limit     int // of Permit

	observer Observer
	needs    []Need
	ofMutex  bool // the options of one Mutex are being applied
}

// WithTTL sets how long the store keeps the lock after a grant or renewal, of which the holder may
// trust all but a margin (see Lease.Deadline). The default is 30 s, the most 365 days. A value
// below Traits.MinTTL, or below 40 ms or twice Traits.Margin, is ErrInvalid. A store may keep the
// lock longer than this, which delays only others.
func WithTTL(d time.Duration) Option {
	return lasting("WithTTL", d, 1, func(s *settings) { s.ttl = d })
}

// WithManualRenew turns background renewal off: the lease ends at its Deadline unless Lease.Renew
// is called. The default renews every third of the TTL, or up to a quarter of that sooner: at
// random, and together with other leases. What was not confirmed is tried again until the Deadline.
func WithManualRenew() Option { return always(func(s *settings) { s.manual = true }) }

// WithoutManualRenew undoes WithManualRenew: for one Mutex of a Locker that has it.
func WithoutManualRenew() Option { return always(func(s *settings) { s.manual = false }) }

// WithMaxHold bounds a hold: no Deadline lies beyond d after the grant was seen, renewed or not. At that
// moment the lease is lost with Reason MaxHold, and the lock is freed, after the time of WithGrace.
// The default is no bound; d is more than 0 and at most 365 days.
func WithMaxHold(d time.Duration) Option {
	return lasting("WithMaxHold", d, 1, func(s *settings) { s.maxHold = d })
}

// WithoutMaxHold undoes WithMaxHold: for one Mutex of a Locker that has it.
func WithoutMaxHold() Option { return always(func(s *settings) { s.maxHold = 0 }) }

// WithOwner sets what Inspect shows of the holder, at most 512 bytes of UTF-8 without NUL. The
// default is host:pid. It decides nothing: two holders of one owner are two holders.
func WithOwner(owner string) Option {
	return func(s *settings) error {
		if err := backend.CheckOwner(owner); err != nil {
			return err
		}
		s.owner = owner
		return nil
	}
}

// WithGrace makes the store keep the lock d longer than the TTL (a lock delay), at most 365 days,
// by default 0: time for a holder whose Deadline has passed to come to a stop. Unlock and Break
// free the lock without it. A backend without Traits.Grace gives ErrUnsupported.
func WithGrace(d time.Duration) Option {
	return lasting("WithGrace", d, 0, func(s *settings) { s.grace = d })
}

// WithMinHold makes the store keep others out for at least d after the grant, also after Unlock: for
// jobs that end sooner than the clocks of their hosts agree, such as one of cron on each of several
// pods. The default, 0, is none; d is at most the TTL and the grace together, else ErrInvalid.
//
// Unlock does not wait for it: the lease has ended for its holder, and the lock is freed d after the
// grant, or at once if that is over. Others get ErrLocked or wait until then, in this process too,
// and Inspect shows the old owner. A lease that is lost sooner keeps others out for as long, and
// Break frees the lock at once. Once the Locker is closed, or its process has ended, nobody frees the
// lock before the store's expiry: TTL and grace after the grant, the last renewal or Unlock,
// whichever came last. So the TTL bounds how long others are kept out too long: for jobs whose
// process ends with them it should be little more than d.
//
// A backend without Traits.MinHold gives ErrUnsupported: zookeeper and postgres with mode=row or
// mode=advisory, where a lock ends with its holder's session or transaction.
func WithMinHold(d time.Duration) Option {
	return lasting("WithMinHold", d, 0, func(s *settings) { s.minHold = d })
}

// WithReentrancy lets Lock and TryLock, with a ctx that carries a live lease of the same name
// (Lease.Context), return another lease on the same hold: the same Token, Deadline and Done. Each
// is unlocked once; the last one frees the lock, in any order. WithTTL, WithGrace, WithMaxHold and
// WithMinHold of the first count for all of them. The default is ErrDeadlock, or ErrLocked of TryLock.
func WithReentrancy() Option { return always(func(s *settings) { s.reentrant = true }) }

// WithoutReentrancy undoes WithReentrancy, and the re-entrancy that a configuration gives to some
// names: for one Mutex of a Locker that has it, or for all of them.
func WithoutReentrancy() Option { return always(func(s *settings) { s.reentrant = false }) }

// WithFloor makes the granted token exceed floor, which must be from 0, the default, to 2^53 − 2.
// Lock and TryLock return ErrInvalid for a floor that is more than an hour, in µs, ahead of the
// numbers that the store grants: it would spend the numbers of other names. WithReentrancy does not
// share a lease whose token is not above the floor. A holder that a guard refused with a StaleError
// acquires with its Max as the floor: that heals a token source that lost its data.
func WithFloor(floor Token) Option {
	return func(s *settings) error {
		if floor < 0 || floor >= maxToken {
			return backend.Invalid("WithFloor(%d): want 0 to %d", floor, maxToken-1)
		}
		s.floor = floor
		return nil
	}
}

// maxToken is 2^53 − 1, above which JSON and Lua would round.
const maxToken = 1<<53 - 1

// WithObserver sends every event of the Locker to o, for metrics, logs and traces. Given more than
// once, it adds: each observer sees everything, in the order in which they were given, and a
// Beginner gets the context of those before it. It is an option of Open and New only; nil is
// ErrInvalid.
func WithObserver(o Observer) Option {
	return func(s *settings) error {
		if s.ofMutex {
			return backend.Invalid("WithObserver is an option of Open and New, not of one Mutex")
		}
		if o == nil {
			return backend.Invalid("WithObserver(nil): want an Observer")
		}
		s.observer = joined(s.observer, o)
		return nil
	}
}

// Require makes Open and New fail with ErrUnsupported when the backend's Traits
// fall short of n, naming each missing field and the backends that have it.
// Given more than once, it adds. A negative TTL in n is ErrInvalid. It is an option of Open and New
// only.
func Require(n Need) Option {
	return func(s *settings) error {
		if s.ofMutex {
			return backend.Invalid("Require is an option of Open and New, not of one Mutex")
		}
		s.needs = append(s.needs, n)
		return nil
	}
}

// always is an option that is never refused.
func always(set func(*settings)) Option {
	return func(s *settings) error {
		set(s)
		return nil
	}
}

// lasting is an option of a time from least on.
func lasting(what string, d, least time.Duration, set func(*settings)) Option {
	if d < least || d > longest {
		return func(*settings) error { return backend.Invalid("%s(%v): want %v to %v", what, d, least, longest) }
	}
	return always(set)
}

// apply returns s with opts, checked against the backend's traits.
func (s settings) apply(t Traits, opts []Option) (settings, error) {
	for _, o := range opts {
		if o == nil {
			return s, backend.Invalid("an Option is nil")
		}
		if err := o(&s); err != nil {
			return s, err
		}
	}
	if least := max(t.MinTTL, 2*margin(0, t)); s.ttl < least {
		const tooShort = "a TTL of %v is too short for %s: at least %v is needed"
		return s, backend.Invalid(tooShort, s.ttl, t.Name, least)
	}
	need := Need{Readers: s.mode == Reader, Permits: s.limit}
	if err := need.Check(t); err != nil {
		return s, err
	}
	if s.grace > 0 && !t.Grace {
		const short = "%s cannot keep a lock longer than its TTL (WithGrace)"
		return s, backend.Unsupported(short, t.Name)
	}
	if s.minHold > 0 && !t.MinHold {
		const ends = "%s frees a lock when its holder's connection ends (WithMinHold): want one of %s"
		return s, backend.Unsupported(ends, t.Name, withMinHold())
	}
	if most := s.ttl + s.grace; s.minHold > most {
		const long = "WithMinHold(%v): want at most the TTL and the grace together, which are %v: " +
			"once the holder's process has ended, nothing else keeps others out"
		return s, backend.Invalid(long, s.minHold, most)
	}
	for _, n := range s.needs {
		if err := n.Check(t); err != nil {
			return s, err
		}
	}
	return s, nil
}

// withMinHold lists the backends of this library that have Traits.MinHold.
func withMinHold() string {
	var have []string
	for _, e := range backend.Catalog() {
		if e.Traits.MinHold {
			have = append(have, e.Traits.Name)
		}
	}
	return strings.Join(have, ", ")
}

// margin is the part of a TTL that a holder does not trust.
func margin(ttl time.Duration, t Traits) time.Duration {
	return max(20*time.Millisecond, ttl/50, t.Margin)
}

// defaultOwner is host:pid.
var defaultOwner = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil || backend.CheckOwner(host) != nil {
		host = "unknown-host"
	}
	return fmt.Sprintf("%s:%d", host, os.Getpid())
})
