package zookeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/testkit"
)

// The session is of 12 s, and the leader has surely heard of an answer after 2 s.
func TestReach(t *testing.T) {
	t.Parallel()
	const length, tick = 12 * time.Second, 2 * time.Second
	type request struct {
		sent, got float64 // seconds
		write     bool
	}
	for _, tt := range []struct {
		name     string
		requests []request
		want     float64 // until when, in seconds
	}{
		{"opened", nil, 12},
		{"an answer proves nothing of itself", []request{{4, 4, true}}, 12},
		{"pings prove nothing", []request{{4, 4, false}, {8, 8, false}}, 12},
		{"a ping, and a write after a tick", []request{{4, 4, false}, {6, 6, true}}, 16},
		{"a write too soon", []request{{4, 4, false}, {5.9, 5.9, true}}, 12},
		{"it is the answer that a tick is counted from", []request{{4, 5, false}, {6.5, 6.5, true}}, 12},
		{"and the sending that the session is counted from", []request{{4, 5, false}, {7, 7, true}}, 16},
		{
			"the last ping that is old enough",
			[]request{{4, 4, false}, {6, 6, false}, {7, 7, false}, {8.5, 8.5, true}},
			18,
		},
		{"writes prove each other", []request{{3, 3, true}, {6, 6, true}, {9, 9, true}}, 18},
		{"what has been proved stays so", []request{{3, 3, true}, {6, 6, true}, {7, 7, true}}, 15},
		{
			"answers at once are one",
			[]request{{4, 4, false}, {4.1, 4.1, false}, {4.2, 4.2, false}, {6.1, 6.1, true}},
			12,
		},
		{"which the last of them begins", []request{{4, 4, false}, {4.1, 4.1, false}, {6.1, 6.1, true}}, 16.1},
		{"a late answer never shortens", []request{{8, 8, true}, {5, 8.5, true}, {10.5, 10.5, true}}, 20},
	} {
		t.Run(tt.name, func(t *testing.T) {
			start := backend.Now()
			after := func(s float64) backend.Instant { return start.Add(time.Duration(s * float64(time.Second))) }
			var r reach
			r.greeted(start, length)
			for _, a := range tt.requests {
				r.answered(after(a.sent), after(a.got), a.write, length, tick)
			}
			if got := r.until.Sub(start).Seconds(); got < tt.want-0.01 || got > tt.want+0.01 {
				t.Errorf("kept until %vs, want %vs", got, tt.want)
			}
		})
	}
}

// A session that is asked for covers what it is asked for, from any moment on, as long as the
// pings go and come; one of the servers' longest covers the longest holds that are said to be
// possible, with more pings.
func TestSessionsCoverTheirHolds(t *testing.T) {
	t.Parallel()
	for _, tick := range []time.Duration{200 * time.Millisecond, 2 * time.Second, 6 * time.Second} {
		for _, length := range []time.Duration{time.Second, 10 * time.Second, 30 * time.Second, time.Hour} {
			session := sessionFor(length, tick)
			if most := longestHold(session, tick); most < length {
				t.Errorf("tick %v: a session of %v covers %v, want %v", tick, session, most, length)
			}
			covers(t, session, length, tick)
			covers(t, session, longestHold(session, tick), tick)
		}
	}
	if most := longestHold(40*time.Second, 2*time.Second); most < 35*time.Second {
		t.Errorf("with the defaults of a server holds of %v are the longest, want 35s", most)
	}
}

// covers looks at a renewal in each phase between two pings and between two reports.
func covers(t *testing.T, session, length, tick time.Duration) {
	t.Helper()
	every, way := pingEvery(session, length, tick), wayMost/2
	for phase := range 20 {
		start := backend.Now()
		var r reach
		r.greeted(start, session)
		at := time.Duration(0)
		for ; at < 3*session; at += every {
			r.answered(start.Add(at), start.Add(at+way), false, session, tick)
		}
		asked := at - every + every*time.Duration(phase)/20
		r.answered(start.Add(asked), start.Add(asked+way), true, session, tick)
		if kept := r.until.Sub(start.Add(asked)); kept < length {
			t.Fatalf("tick %v, session %v, pings every %v: a renewal %v after a ping is kept for %v, want %v",
				tick, session, every, asked-(at-every), kept, length)
		}
	}
}

// A renewal is not final while the leader may not have heard of the session for long. One later is.
func TestRenewalOnAnUnsureSession(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{Config: []string{"maxSessionTimeout=60000"}})
	st, d := aClient(t, z.Addrs()[0], Options{})
	r := aRequest("6")
	if _, err := d.Acquire(in(t, 20*time.Second), r); err != nil {
		t.Fatal(err)
	}
	c := &backend.Claim{Request: r}
	s, tick := st.find(c).s, st.ticks.Swap(int64(time.Hour)) // so nothing proves that the leader has heard
	s.mu.Lock()
	s.reach.until = backend.Now()
	s.mu.Unlock()
	renew := func() error { return st.Keep(in(t, 10*time.Second), []*backend.Claim{c}, true)[0] }
	if err := renew(); !errors.Is(err, errUnsettled) {
		t.Errorf("after a silence: got %v, want %v", err, errUnsettled)
	}
	st.ticks.Store(tick)
	testkit.Await(t, 10*time.Second, "a renewal once the leader has heard of the session again", func() bool {
		return renew() == nil
	})
}

// What was answered is not kept for ever, though nothing is written.
func TestReachForgets(t *testing.T) {
	t.Parallel()
	const length, tick = 12 * time.Second, 200 * time.Millisecond
	start := backend.Now()
	var r reach
	r.greeted(start, length)
	for i := range 10_000 {
		at := start.Add(time.Duration(i) * 10 * time.Millisecond)
		r.answered(at, at, false, length, tick)
	}
	if n := len(r.open); n > 300 {
		t.Errorf("%d answers are open, want them thrown away after %v", n, openFor)
	}
}
