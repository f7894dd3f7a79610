package simulation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

// flaw is one mistake that the store, the driver or the resource makes.
type flaw string

const (
	// Those of the experiments.
	releaseAnybody  flaw = "release without owner check"
	guardIgnores    flaw = "guard ignores tokens"
	secondTrip      flaw = "token by a second request"
	counterPlain    flaw = "counter goes back on restart"
	restartForgets  flaw = "restart loses locks"
	renewResurrects flaw = "renewal resurrects"
	askedLate       flaw = "counted from the reply"

	resentIsTaken    flaw = "re-sent acquire: taken"
	resentNewToken   flaw = "re-sent acquire: new token"
	abandonForgotten flaw = "abandoned request granted late"
	ghost            flaw = "ghost of an abandoned grant"
	neverAbandons    flaw = "given up, not undone"
	placeKept        flaw = "abandoned place kept"
	abandonAnybody   flaw = "abandon without owner check"
	nilOnCancel      flaw = "nil, nil on cancel"
	triesUsedUp      flaw = "wait capped by a number of tries"
	waitEndsHold     flaw = "wait capped by the TTL: holds"
	lateWait         flaw = "wait outlasts its ctx"
	deadForTry       flaw = "dead lock refused to a try"
	checkThenSet     flaw = "check, then set"
	sessionShares    flaw = "two of a session hold"
	nameIsPath       flaw = "a meets a/b"

	neverExpires    flaw = "never expires"
	expiresEarly    flaw = "expiry before the TTL"
	expiresLate     flaw = "expiry 3 s late"
	graceIgnored    flaw = "grace ignored"
	renewCreates    flaw = "renewal creates"
	renewAnybody    flaw = "renewal without owner check"
	renewSaysYes    flaw = "renewal always nil"
	renewNewToken   flaw = "renewal takes a token"
	renewsOn        flaw = "renews after release"
	unknownIsLost   flaw = "failed renewal is a loss"
	heartbeatOfWait flaw = "acquire ctx owns the heartbeat"
	breakSilent     flaw = "holder not told of Break"
	tellsAll        flaw = "all holders told of Break"

	releaseByOwner    flaw = "release by client, not nonce"
	releasedTwiceLost flaw = "repeated release: lost"
	releaseSaysYes    flaw = "release of a lost lock: nil"
	slowRelease       flaw = "release hangs"
	swallowed         flaw = "release error swallowed"
	neverAgain        flaw = "never again after a loss"

	counterPerLock flaw = "counter deleted at release"
	tokenConstant  flaw = "token is constant"
	tokenRandom    flaw = "token is random"
	tokenSeconds   flaw = "token is the time, coarse"
	tokenNanos     flaw = "token above 2^53"
	tokenEarly     flaw = "token before the lock is won"
	floorIgnored   flaw = "floor ignored"

	lifo            flaw = "last come, first served"
	overtaking      flaw = "try overtakes waiters"
	deadStalls      flaw = "dead waiter stalls the queue"
	pushOnly        flaw = "waits for the push only"
	swallowsOutages flaw = "outage swallowed while waiting"
	leaksGoroutine  flaw = "a goroutine a lock"

	reserveAgain flaw = "reserved tokens granted again"
	reserveMore  flaw = "more reserved than there are"
	sentLate     flaw = "old grant said to be new"

	eventTwice flaw = "event doubled"
	eventLost  flaw = "loss not told to the observer"
	eventLate  flaw = "event has the time of its delivery"

	hungLate    flaw = "outlasts its ctx while the store hangs"
	hungForgets flaw = "tombstone not looked at after a hang"
	hungRenewed flaw = "unanswered renewal is fine"

	wakesNobody flaw = "release wakes nobody"

	unsureForgotten flaw = "no tombstone for what went unanswered"

	// Of what several hold at once.
	modesMixed     flaw = "readers beside a writer"
	onePermitMore  flaw = "one permit too many"
	ownLimit       flaw = "the limits of others are nothing"
	eraKept        flaw = "readers' token kept over a writer"
	tokenEach      flaw = "a token for each reader"
	slotIsCount    flaw = "slot is the count"
	permitNotFound flaw = "re-sent permit: another"
	newcomersPass  flaw = "readers pass those who wait"
	oneExpiry      flaw = "one expiry for all who hold"
)

// mistakes are those that must be found.
var mistakes = []flaw{
	releaseAnybody, guardIgnores, secondTrip, counterPlain, restartForgets, renewResurrects, askedLate,
	resentIsTaken, resentNewToken, abandonForgotten, ghost, neverAbandons, placeKept,
	abandonAnybody, nilOnCancel, triesUsedUp,
	waitEndsHold, lateWait, deadForTry, checkThenSet, sessionShares, nameIsPath,
	neverExpires, expiresEarly, expiresLate, graceIgnored, renewCreates, renewAnybody, renewSaysYes,
	renewNewToken, renewsOn,
	unknownIsLost, heartbeatOfWait, breakSilent, tellsAll,
	releaseByOwner, releasedTwiceLost, releaseSaysYes, slowRelease, swallowed, neverAgain,
	counterPerLock, tokenConstant, tokenRandom, tokenSeconds, tokenNanos, tokenEarly, floorIgnored,
	lifo, overtaking, deadStalls, pushOnly, swallowsOutages, leaksGoroutine, wakesNobody,
	reserveAgain, reserveMore, sentLate, eventTwice, eventLost, eventLate, hungLate, hungForgets, hungRenewed,
	unsureForgotten,
	modesMixed, onePermitMore, ownLimit, eraKept, tokenEach, slotIsCount, permitNotFound, newcomersPass, oneExpiry,
}

// elsewhere are the mistakes that no broken driver or store can make here, and what finds them.
var elsewhere = []struct{ mistake, why string }{
	{
		"the ctx of a request ignored in flight, hung nodes, quorums",
		"a matter of one store's client: the suite's rules A6, H over real servers",
	},
	{"names that collide by case, length, form or slot", "a matter of encodings: rule A10; one such mistake is above"},
	{
		"absolute times of the client's clock",
		"all here share one clock, as do the processes of the suite: a driver's own tests look at what it sends",
	},
	{"a process that was stopped sees its loss late", "a bubble cannot stop a process: rule D5"},
	{"rows, keys and connections left behind", "the simulated store has none: rules E8, J1 to J3"},
	{"a client that was given is changed or closed", "there is none: rule J4"},
	{"commands that grow with the number of waiters", "rule F5"},
	{
		"accessors that block behind the store, an Unlock refused for its ctx, " +
			"an acquire ctx that ends the lease",
		"the engine's own, which is as it is here: its tests, and rules B3, C11",
	},
}

// acquireBadly makes the mistakes of an Acquire; done: this is its outcome.
func (d *driver) acquireBadly(ctx context.Context, a *acq) (g backend.Grant, err error, done bool) {
	switch d.w.flaw {
	case lateWait:
		if !a.r.Wait {
			return g, nil, false
		}
		long, cancel := context.WithTimeout(d.w.ctx, 20*time.Second)
		defer cancel()
		g, err = d.acquire(long, a)
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		return g, err, true
	case triesUsedUp, waitEndsHold:
		if !a.r.Wait {
			return g, nil, false
		}
		most := 4 * time.Second
		if d.w.flaw == waitEndsHold {
			most = a.r.TTL
		}
		short, cancel := context.WithTimeout(ctx, most)
		defer cancel()
		g, err = d.acquire(short, a)
		if err == nil || ctx.Err() != nil || short.Err() == nil {
			return g, err, true
		}
		if d.w.flaw == triesUsedUp {
			return g, backend.ErrLocked, true
		}
		d.w.mu.Lock()
		defer d.w.mu.Unlock()
		return backend.Grant{Token: d.w.last[a.name] + 1, Asked: backend.Now(), Handle: a}, nil, true
	case neverAgain:
		if d.lost.Load() {
			return g, backend.ErrLost, true
		}
	case checkThenSet:
		rep, asked, err := d.c.call(ctx, d.id(a, "check"), func() reply {
			return reply{info: d.w.store.inspect(a.name)}
		})
		if err != nil || rep.info.Held || rep.info.Waiters > 0 {
			return g, nil, false
		}
		rep, _, err = d.c.call(ctx, d.id(a, "set"), func() reply { return d.w.store.give(d.w.store.lock(a.name), a) })
		return backend.Grant{Token: rep.token, Asked: asked, Handle: a}, err, true
	case leaksGoroutine:
		go func() { <-make(chan struct{}) }()
	case pushOnly, swallowsOutages:
		g, err = d.acquireStubbornly(ctx, a)
		return g, err, true
	}
	return g, nil, false
}

// acquireStubbornly waits for a push that may be lost, or for a store that may be down.
func (d *driver) acquireStubbornly(ctx context.Context, a *acq) (g backend.Grant, err error) {
	d.hears(a, a.r.Wait && d.w.flaw == swallowsOutages)
	defer d.hears(a, false)
	for {
		rep, asked, err := d.c.call(ctx, d.id(a, "acquire"), func() reply { return d.w.store.acquire(a) })
		switch {
		case err == nil:
			return d.granted(a, rep, asked), nil
		case ctx.Err() != nil, !a.r.Wait, backend.Final(err) && !errors.Is(err, backend.ErrLocked):
			return g, err
		}
		var floor <-chan time.Time
		if d.w.flaw == swallowsOutages {
			floor = time.After(time.Second)
			if errors.Is(err, backend.ErrLocked) {
				d.hears(a, true)
			}
		}
		select {
		case <-a.wake:
		case <-floor:
		case <-ctx.Done():
			return g, core.Ended(ctx, true, nil)
		}
	}
}

// releaseBadly makes the mistakes of a Release that came to err.
func (d *driver) releaseBadly(a *acq, err error) error {
	switch d.w.flaw {
	case swallowed:
		if err != nil && !backend.Final(err) {
			return nil
		}
	case neverAgain:
		if errors.Is(err, backend.ErrLost) {
			d.lost.Store(true)
		}
	case renewsOn:
		time.AfterFunc(100*time.Millisecond, func() {
			d.w.mu.Lock()
			defer d.w.mu.Unlock()
			_ = d.w.store.renew(a)
		})
	}
	return err
}

// within is how many seeds a mistake may take. Few do, so this is not fewer with -short or the race detector.
const within = 2000

// rare are the mistakes that few seeds show, with one that does, from which the search begins.
var rare = map[flaw]int{neverAgain: 755, hungForgets: 259, deadForTry: 197}

// TestMistakes shows that every mistake is found within the seeds of a run.
func TestMistakes(t *testing.T) {
	var table strings.Builder
	for _, f := range mistakes {
		tried, what := search(t, f, within)
		if what == "" {
			t.Errorf("%s: not found in %d seeds", f, tried)
			continue
		}
		fmt.Fprintf(&table, "%-34s %5d  %s\n", f, tried, what)
	}
	for _, e := range elsewhere {
		fmt.Fprintf(&table, "not here: %s: %s\n", e.mistake, e.why)
	}
	t.Logf("mistakes, the seeds until each was found, and the first finding\n%s", table.String())
}

// search runs worlds with a mistake until one shows it.
func search(t *testing.T, f flaw, most int) (tried int, what string) {
	for i := range most {
		if w := run(t, uint64((rare[f]+i)%most), f); len(w.found) > 0 {
			return i + 1, w.found[0]
		}
	}
	return most, ""
}
