package main

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
)

// server is one serve. Its methods may be called from many goroutines.
type server struct {
	a           *app
	locks       *fencelock.Locker
	listen      string
	hosts       []string // lower case
	allowRemote bool
	token       *[sha256.Size]byte // the hash of what breaking asks for; nil: there is no breaking
	started     time.Time

	mu         sync.Mutex
	view       view
	changes    []serveChange // the last ones, oldest first
	lastChange int64
}

// serveChange is a change with a number that rises for as long as the server runs.
type serveChange struct {
	ID int64 `json:"id"`
	changeJSON
}

// serveState is what /api/locks answers. Its keys are stable; docs/command.md describes them.
type serveState struct {
	Started    time.Time     `json:"started"`
	Backend    string        `json:"backend"`
	Prefix     string        `json:"prefix"`
	Interval   int64         `json:"interval_ms"`
	AllowBreak bool          `json:"allow_break"`
	At         *time.Time    `json:"at"`     // of the last look that the store answered; null: there was none
	Age        int64         `json:"age_ms"` // how long ago that was
	Outage     *serveOutage  `json:"outage"` // null: the store answers
	Locks      []rowJSON     `json:"locks"`
	Changes    []serveChange `json:"changes"`
}

// serveOutage says that the store does not answer.
type serveOutage struct {
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// state is what is known now.
func (s *server) state(now time.Time) serveState {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.view
	st := serveState{
		Started:    s.started,
		Backend:    s.locks.Traits().Name,
		Prefix:     v.prefix,
		Interval:   v.every.Milliseconds(),
		AllowBreak: s.token != nil,
		Locks:      make([]rowJSON, 0, len(v.rows)),
		Changes:    append([]serveChange{}, s.changes...),
	}
	if at := v.at; !at.IsZero() {
		st.At, st.Age = &at, now.Sub(at).Milliseconds()
	}
	if v.outage != nil {
		st.Outage = &serveOutage{v.outage.since, message(v.outage.err)}
	}
	for _, r := range v.rows {
		st.Locks = append(st.Locks, rowToJSON(r, now))
	}
	return st
}

// out returns the outage, if there is one, and for how long.
func (s *server) out(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.view.outage == nil {
		return 0, false
	}
	return now.Sub(s.view.outage.since), true
}
