package serve

import (
	"crypto/sha256"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// server is one serve. Its methods may be called from many goroutines.
type server struct {
	a           *cli.App
	locks       *fencelock.Locker
	listen      string
	hosts       []string // lower case
	allowRemote bool
	token       *[sha256.Size]byte // the hash of the secret for breaking; nil: breaking is not allowed
	started     time.Time
	where       string // the store's hosts

	mu         sync.Mutex
	view       view.View
	changes    []change // the last ones, oldest first
	lastChange int64
}

// change is a change with a number that rises for as long as the server runs.
type change struct {
	ID int64 `json:"id"`
	view.ChangeJSON
}

// State is the answer of /api/locks. Its keys are stable; docs/command.md describes them.
type State struct {
	Started    time.Time      `json:"started"`
	Backend    string         `json:"backend"`
	Store      string         `json:"store"` // where it is, without user and password
	Prefix     string         `json:"prefix"`
	Interval   int64          `json:"interval_ms"`
	AllowBreak bool           `json:"allow_break"`
	At         *time.Time     `json:"at"`     // of the store's last answer; null: none yet
	Age        int64          `json:"age_ms"` // of that answer
	Outage     *outage        `json:"outage"` // null: the store answers
	Locks      []view.RowJSON `json:"locks"`
	Changes    []change       `json:"changes"`
}

// outage is set while the store does not answer.
type outage struct {
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// state returns the State as of now.
func (s *server) state(now time.Time) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.view
	st := State{
		Started:    s.started,
		Backend:    s.locks.Traits().Name,
		Store:      s.where,
		Prefix:     v.Prefix,
		Interval:   v.Every.Milliseconds(),
		AllowBreak: s.token != nil,
		Locks:      make([]view.RowJSON, 0, len(v.Rows)),
		Changes:    append([]change{}, s.changes...),
	}
	if at := v.At; !at.IsZero() {
		st.At, st.Age = &at, now.Sub(at).Milliseconds()
	}
	if v.Outage != nil {
		st.Outage = &outage{v.Outage.Since, cli.Message(v.Outage.Err)}
	}
	for _, r := range v.Rows {
		st.Locks = append(st.Locks, r.JSON(now))
	}
	return st
}

// out reports whether the store does not answer or has not answered yet, and since when.
func (s *server) out(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.view.Outage != nil:
		return now.Sub(s.view.Outage.Since), true
	case s.view.At.IsZero():
		return now.Sub(s.started), true
	}
	return 0, false
}
