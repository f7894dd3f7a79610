package zookeeper

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// reach is until when the servers surely keep a session, also if the server that it is connected
// to falls silent now. The package comment says why.
type reach struct {
	until backend.Instant // surely kept until then
	open  []answer        // the leader may not have heard of them yet; in the order of the answers

	failed   int   // servers tried since something was answered
	refused  int   // servers that hung up since one greeted
	behind   int   // of those, how many were no election's doing; behindMost: the servers have lost their data
	silences int   // connections given up for their silence since something was answered
	err      error // why the last server could not be connected to
}

// behindMost is how often servers hang up without a reason other than that they have less than the session has
// seen, until that is believed: a majority may break up between the two connections that show it.
const behindMost = 3

// answer is a request that was answered, or several within a short time: the last one's sending
// and answer.
type answer struct{ first, sent, got backend.Instant }

// The parts of a session. The leader asks a follower every half tick which sessions it has heard
// of. So it has surely heard of a request once another has gone through it that was sent a tick
// after the first one was answered: half of that tick is for the ways between servers. Holds of
// length x are covered by a session of x, the time between two pings, that tick, an eighth of it
// for answers that are counted together, and another eighth and a few milliseconds for the way of
// a request.
const (
	grains     = 8  // answers within this part of a tick are counted together
	pingsUsual = 6  // pings in the length of a hold
	pingsMost  = 24 // where the servers' longest session leaves no room for fewer
	wayMost    = 50 * time.Millisecond
	// A request may take so long and still prove what was answered before it was sent.
	openFor = 5 * time.Second
)

// upkeep is how much longer than a hold and the time between two pings a session has to be.
func upkeep(tick time.Duration) time.Duration { return tick + 2*tick/grains + wayMost }

// sessionFor is the session that covers holds of a length.
func sessionFor(length, tick time.Duration) time.Duration {
	return length + length/pingsUsual + upkeep(tick)
}

// longestHold is the longest hold that a session covers.
func longestHold(session, tick time.Duration) time.Duration {
	return max(0, (session-upkeep(tick))*pingsMost/(pingsMost+1)).Truncate(time.Millisecond)
}

// pingEvery is the time between two pings that makes a session cover holds of a length; if none does,
// the one that covers the longest holds.
func pingEvery(session, length, tick time.Duration) time.Duration {
	length = min(length, longestHold(session, tick))
	return max(min(length/pingsUsual, session-length-upkeep(tick)), wayMost/2)
}

// greeted: the leader has opened the session, or found it alive, after at.
func (r *reach) greeted(at backend.Instant, session time.Duration) {
	*r = reach{until: at.Add(session), failed: r.failed, silences: r.silences}
}

// answered: a server has answered a request now that was sent at at. write: the answer came
// through the leader, which does what a follower tells it in order: all reports that the follower
// made before it passed the request on came before.
func (r *reach) answered(at, now backend.Instant, write bool, session, tick time.Duration) {
	if write {
		heard := 0
		for _, a := range r.open {
			if at.Sub(a.got) < tick {
				break
			}
			if end := a.sent.Add(session); end.Sub(r.until) > 0 {
				r.until = end
			}
			heard++
		}
		r.open = slices.Delete(r.open, 0, heard)
	}
	// A request is of no use if a later one will prove as much.
	for len(r.open) > 1 && now.Sub(r.open[1].got) > tick+openFor {
		r.open = slices.Delete(r.open, 0, 1)
	}
	if n := len(r.open); n > 0 && now.Sub(r.open[n-1].first) < tick/grains {
		last := &r.open[n-1]
		last.got = now
		if at.Sub(last.sent) > 0 {
			last.sent = at
		}
		return
	}
	r.open = append(r.open, answer{now, at, now})
}
