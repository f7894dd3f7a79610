//go:build unix

package backends

import (
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/history"
)

// outages is I4: in phase both, while either store is stopped, nobody is granted a lock, and
// afterwards everybody goes on.
func outages(f *fleet) {
	f.deploy(5, both, both)
	windows := []window{f.outage(from, f.servers[0]), f.outage(to, f.servers[1])}
	for _, e := range f.check() {
		for _, w := range windows {
			if e.Kind == history.Granted && e.Called > w.stopped && e.At < w.starting {
				f.Errorf("granted while a store was stopped, from %v to %v: %+v",
					time.Duration(w.stopped), time.Duration(w.starting), e)
			}
		}
	}
}

// window is when a server was stopped for sure.
type window struct{ stopped, starting history.Moment }

// outage stops a server, sees that no member can lock a free name, and starts the server again.
func (f *fleet) outage(side backend.Phase, s server) (w window) {
	f.Helper()
	if err := s.Stop(); err != nil {
		f.Fatal(err)
	}
	w.stopped = history.Now()
	// For longer than any lease from before lasts. The members' load goes on trying too.
	for end := time.Now().Add(f.ttl + time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		for name, p := range f.members { // all at once, for each takes seconds to give up
			p.tell("cycle", "probe-"+name)
		}
		for name, p := range f.members {
			if got, _ := p.line(); !strings.Contains(got, fencelock.ErrUnavailable.Error()) {
				f.Errorf("without the store of phase %s: %s: got %q, want it to be unavailable", side, name, got)
			}
		}
	}
	w.starting = history.Now()
	if err := s.Start(); err != nil {
		f.Fatal(err)
	}
	back := history.Now()
	f.progress(5)
	f.Logf("the store of phase %s: was away for %v, and everybody went on within %v of its return", side,
		time.Duration(w.starting-w.stopped).Round(time.Millisecond),
		time.Duration(history.Now()-back).Round(time.Millisecond))
	return w
}
