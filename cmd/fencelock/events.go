package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
)

// events prints what happens to a run as JSON lines on stderr, if asked to.
type events struct {
	a     *app
	lease *fencelock.Lease
}

// event is one line.
type event struct {
	At       time.Time       `json:"at"`
	Event    string          `json:"event"`
	Name     string          `json:"name"`
	Token    fencelock.Token `json:"token"`
	Backend  string          `json:"backend,omitempty"`
	Owner    string          `json:"owner,omitempty"`
	WaitedMS *int64          `json:"waited_ms,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Code     *int            `json:"code,omitempty"`
}

func (e events) emit(v event) {
	if !e.a.json {
		return
	}
	v.At, v.Name, v.Token = time.Now(), e.lease.Name(), e.lease.Token()
	e.a.printJSON(e.a.err, v)
}

func (e events) acquired(backend string, waited time.Duration) {
	ms := waited.Milliseconds()
	e.emit(event{Event: "acquired", Backend: backend, Owner: e.lease.Owner(), WaitedMS: &ms})
}

func (e events) released() { e.emit(event{Event: "released"}) }

func (e events) lost(err *fencelock.LostError) {
	e.emit(event{Event: "lost", Reason: err.Reason.String()})
}

func (e events) exit(code int) { e.emit(event{Event: "exit", Code: &code}) }

// warn prints what does not change the exit code.
func (a *app) warn(format string, args ...any) {
	msg := scrub(strings.ReplaceAll(fmt.Sprintf(format, args...), "fencelock: ", ""))
	if a.json {
		a.printJSON(a.err, struct {
			Warning string `json:"warning"`
		}{msg})
		return
	}
	fmt.Fprintln(a.err, "fencelock: "+msg)
}
