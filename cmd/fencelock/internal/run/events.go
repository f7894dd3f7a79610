package run

import (
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// events prints the events of a run as JSON lines on stderr, with --json.
type events struct {
	a     *cli.App
	lease *fencelock.Lease
}

// Event is one such line.
type Event struct {
	At       time.Time       `json:"at"`
	Event    string          `json:"event"`
	Name     string          `json:"name"`
	Token    fencelock.Token `json:"token"`
	Backend  string          `json:"backend,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	Mode     fencelock.Mode  `json:"mode,omitempty"` // left out: exclusive
	Slot     *int            `json:"slot,omitempty"` // of a permit
	WaitedMS *int64          `json:"waited_ms,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Code     *int            `json:"code,omitempty"`
}

func (e events) emit(v Event) {
	if !e.a.JSON {
		return
	}
	v.At, v.Name, v.Token = time.Now(), e.lease.Name(), e.lease.Token()
	e.a.PrintErr(v)
}

func (e events) acquired(backend string, waited time.Duration) {
	ms := waited.Milliseconds()
	v := Event{Event: "acquired", Backend: backend, Owner: e.lease.Owner(), Mode: e.lease.Mode(), WaitedMS: &ms}
	if slot := e.lease.Slot(); v.Mode == fencelock.Permit {
		v.Slot = &slot
	}
	e.emit(v)
}

func (e events) lost(err *fencelock.LostError) {
	e.emit(Event{Event: "lost", Reason: err.Reason.String()})
}
