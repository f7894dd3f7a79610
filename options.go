package fencelock

import (
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// DefaultTTL is the TTL of a lease when neither the URL nor an option sets one.
const DefaultTTL = 30 * time.Second

// longest bounds every duration that a store is asked to keep.
const longest = 365 * 24 * time.Hour

// An Option sets one property of a Locker (as the default of its mutexes) or
// of one Mutex. Options of a Mutex win over those of Open and New, which win
// over keys of the URL. A bad value is reported as ErrInvalid: by Open and New,
// or by Lock and TryLock of the Mutex that it was given to.
type Option func(*settings) error

// settings are the values of all options.
type settings struct {
	ttl       time.Duration
	manual    bool
	maxHold   time.Duration
	owner     string
	grace     time.Duration
	reentrant bool
	floor     Token

	observer Observer
	needs    []Need
	ofMutex  bool // the options of one Mutex are being applied
}

// WithTTL sets how long a lease may be trusted after a grant or renewal; the
// default is 30 s, at most 365 days. A value below Traits.MinTTL is ErrInvalid.
// A store may keep the lock longer than this, which delays only others.
func WithTTL(d time.Duration) Option {
	return func(s *settings) error {
		if err := checkDuration("WithTTL", d); err != nil {
			return err
		}
		s.ttl = d
		return nil
	}
}

// WithManualRenew turns background renewal off: the lease ends at its Deadline
// unless Lease.Renew is called. The default renews every third of the TTL, less up to a tenth at random.
func WithManualRenew() Option {
	return func(s *settings) error {
		s.manual = true
		return nil
	}
}

// WithMaxHold bounds a hold: no Deadline lies beyond d after the grant, renewed
// or not. At that moment the lease is lost with Reason MaxHold, and the lock is freed. The default is no bound.
func WithMaxHold(d time.Duration) Option {
	return func(s *settings) error {
		if err := checkDuration("WithMaxHold", d); err != nil {
			return err
		}
		s.maxHold = d
		return nil
	}
}

// WithOwner sets what Inspect shows of the holder, at most 512 bytes of UTF-8.
// The default is host:pid.
func WithOwner(owner string) Option {
	return func(s *settings) error {
		if err := backend.CheckOwner(owner); err != nil {
			return err
		}
		s.owner = owner
		return nil
	}
}

// WithGrace makes the store keep the lock d longer than the holder may trust it
// (a lock delay), at most 365 days, by default 0: time for a holder that was lost to come to a stop.
// A backend without Traits.Grace gives ErrUnsupported.
func WithGrace(d time.Duration) Option {
	return func(s *settings) error {
		if d < 0 || d > longest {
			return backend.Invalid("WithGrace(%v): want 0 to %v", d, longest)
		}
		s.grace = d
		return nil
	}
}

// WithReentrancy lets Lock and TryLock, with a ctx that carries a live lease of
// the same name, return another lease on the same hold: the same Token, Deadline
// and Done. Each is unlocked once; the last one frees the lock, in any order.
func WithReentrancy() Option {
	return func(s *settings) error {
		s.reentrant = true
		return nil
	}
}

// WithFloor makes the granted token exceed floor, which must be from 0 to
// below 2^53. A holder that a guard refused with a StaleError acquires with its Max as
// the floor: that heals a token source which lost its data.
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

// WithObserver sends every event of the Locker to o, for metrics, logs and
// traces. Given more than once, it adds: each observer sees everything, in the order in which they were
// given, and a Beginner gets the context of those before it. It is an option of Open and New only.
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
// fall short of n, naming each missing field and the backends that have it. It
// is an option of Open and New only.
func Require(n Need) Option {
	return func(s *settings) error {
		if s.ofMutex {
			return backend.Invalid("Require is an option of Open and New, not of one Mutex")
		}
		s.needs = append(s.needs, n)
		return nil
	}
}

func checkDuration(what string, d time.Duration) error {
	if d <= 0 || d > longest {
		return backend.Invalid("%s(%v): want more than 0 and at most %v", what, d, longest)
	}
	return nil
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
		return s, backend.Invalid("a TTL of %v is too short for %s: at least %v is needed", s.ttl, t.Name, least)
	}
	if s.grace > 0 && !t.Grace {
		return s, backend.Unsupported("%s cannot keep a lock longer than its TTL (WithGrace)", t.Name)
	}
	for _, n := range s.needs {
		if err := n.Check(t); err != nil {
			return s, err
		}
	}
	return s, nil
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
