package fencelock

import (
	"cmp"
	"container/heap"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
)

const (
	cleanLimit = 2 * time.Second // of one try
	cleanFirst = cleanLimit / 4  // of the first one, so that what is stuck does not hold up the others
	cleanMost  = 1024            // tries under way, with those that hang
	firstPause = 20 * time.Millisecond
	longPause  = time.Second
	closePause = 200 * time.Millisecond // Close gives up what needs a longer one
	// Once TTL + grace + cleanExtra are over, most stores have let go by themselves. One in which
	// locks live as long as a session of this process has not: so tries go on, less often, for as
	// many requests as a program can be expected to leave.
	cleanExtra   = 10 * time.Second
	overduePause = 30 * time.Second
	overdueMost  = 10_000
	// When the store has answered another call, some of them are tried at once, this often at the most.
	heardEvery = time.Second
	heardMost  = 64
	// A store that is down is asked again for no more than so many requests a second, whatever it was asked for before.
	// Each answer gives back what two tries took.
	retryEvery = 10 * time.Millisecond
	retryMost  = 100
)

// janitor undoes, in the background, acquisitions that are unwanted or whose
// outcome is unknown, and frees what a lost lease may have left, and what WithMinHold has kept. Each
// store has a janitor of its own, which has goroutines only while there is work, and one timer.
type janitor struct {
	l      *Locker
	caller core.Caller

	mu      sync.Mutex
	ready   pile[*job] // to be tried now
	later   pile[*job] // to be tried at their time
	timer   *time.Timer
	pool    pool
	running int
	credit  int          // tries again that may be made now
	creditd time.Time    // when that was counted
	overdue atomic.Int64 // jobs
	heardAt time.Time
	closing bool // no new waiting: what is left is tried a few times more and given up
	idle    *sync.Cond
}

// job is one acquisition to undo.
type job struct {
	r        *backend.Request
	doubtful *hold // whose request it is, if Unlock may ask yet what became of its writes
	stands   bool  // the store may have something of it: a refusal is not the end, for the rights may come back
	unlocked bool  // by its holder, and only kept: no event tells of its end
	began    time.Time
	tries    int
	pause    time.Duration // before the next try
	at       time.Time     // of the next try
	due      time.Time     // when the store should have let go
	overdue  bool          // it is past that
	refused  bool          // by the last answer
	place    int           // in ready or later, from 1
	dice     dice
}

func newJanitor(l *Locker, c core.Caller) *janitor {
	j := &janitor{l: l, caller: c, credit: retryMost}
	place := func(w *job) *int { return &w.place }
	// The jobs with the fewest tries come first, and of these the latest: while more come than the store answers,
	// the ones that can still keep a promise are served.
	j.ready = pile[*job]{place: place, before: func(a, b *job) bool {
		return cmp.Or(cmp.Compare(a.tries, b.tries), b.at.Compare(a.at)) < 0
	}}
	j.later = pile[*job]{place: place, before: func(a, b *job) bool { return a.at.Before(b.at) }}
	j.idle = sync.NewCond(&j.mu)
	return j
}

// add hands r over: Abandon is called until the store has confirmed it.
func (j *janitor) add(r *backend.Request) { j.put(&job{r: r, stands: core.Stands(r)}, 0) }

// addLost hands over the request of a lost hold. What may be left of the lock is freed once its
// grace is over, and its WithMinHold. A Close in between leaves that to the store's expiry.
func (j *janitor) addLost(h *hold) {
	w := &job{r: h.Request, stands: true}
	if h.doubtful() {
		w.doubtful = h
	}
	j.put(w, max(h.Grace, h.minLeft()))
}

// addAfter hands over a granted request that stays in the store for so long. Where that is because it was unlocked
// (WithMinHold), a Close in between leaves it to the store's expiry.
func (j *janitor) addAfter(r *backend.Request, wait time.Duration, unlocked bool) {
	j.put(&job{r: r, stands: true, unlocked: unlocked}, wait)
}

func (j *janitor) put(w *job, wait time.Duration) {
	now, r := time.Now(), w.r
	w.began, w.pause = now, firstPause
	w.at, w.due = now.Add(wait), now.Add(wait+r.TTL+r.Grace+cleanExtra)
	w.dice.seed(r.Nonce, 0)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case wait == 0:
		heap.Push(&j.ready, w)
	case !j.closing:
		heap.Push(&j.later, w)
	}
	j.work()
}

// work begins the tries that may begin, sets the timer, and has close look whether all is done. j.mu is held.
func (j *janitor) work() {
	now := time.Now()
	for len(j.later.all) > 0 && !now.Before(j.later.all[0].at) {
		heap.Push(&j.ready, heap.Pop(&j.later))
	}
	if add := int(now.Sub(j.creditd) / retryEvery); add > 0 {
		j.credit, j.creditd = min(j.credit+add, retryMost), now
	}
	var next time.Time
	for len(j.ready.all) > 0 && !j.pool.full() && j.running < cleanMost {
		if again := j.ready.all[0].tries > 0; again && !j.closing {
			if j.credit <= 0 {
				next = now.Add(retryEvery)
				break
			}
			j.credit--
		}
		w := heap.Pop(&j.ready).(*job)
		j.running++
		go j.try(w, j.pool.begin(&j.mu, j.work))
	}
	if len(j.later.all) > 0 && (next.IsZero() || j.later.all[0].at.Before(next)) {
		next = j.later.all[0].at
	}
	j.arm(next)
	j.idle.Broadcast()
}

// arm sets the timer; j.mu is held.
func (j *janitor) arm(next time.Time) {
	if next.IsZero() {
		return
	}
	wait := max(time.Until(next), 0)
	if j.timer == nil {
		j.timer = time.AfterFunc(wait, j.fire)
	} else {
		j.timer.Reset(wait)
	}
}

func (j *janitor) fire() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.work()
}

// try abandons the request once, and puts it off if that was not the end of it. ended counts the call out.
func (j *janitor) try(w *job, ended func()) {
	answered, done := j.clean(w)
	j.mu.Lock()
	defer j.mu.Unlock()
	ended()
	j.running--
	w.tries++
	w.refused = answered && !done
	if answered && w.tries > 1 {
		j.credit = min(j.credit+2, retryMost)
	}
	if done && w.overdue {
		j.overdue.Add(-1)
	}
	if !done {
		if most := j.longest(w); most > 0 {
			w.at = time.Now().Add(w.pause/2 + w.dice.below(w.pause))
			w.pause = min(2*w.pause, most)
			heap.Push(&j.later, w)
		}
	}
	j.work()
}

// clean abandons the request once, and reports whether the store has answered, and whether that is the end of it.
func (j *janitor) clean(w *job) (answered, done bool) {
	most := cleanLimit
	if w.tries == 0 {
		most = cleanFirst
	}
	ctx, cancel := context.WithTimeout(j.l.ctx, most)
	defer cancel()
	if h := w.doubtful; h != nil { // one call about a request at a time
		if !h.take(ctx, &h.unlocking) {
			return false, j.l.ctx.Err() != nil
		}
		defer h.give(&h.unlocking)
	}
	err := j.caller.Abandon(ctx, w.r)
	if (err == nil || errors.Is(err, ErrLost)) && !w.unlocked {
		j.l.tell(Event{Kind: CleanedUp, Name: w.r.Name, Mode: w.r.Mode, Owner: w.r.Owner, Took: time.Since(w.began)})
	}
	answered = err == nil || backend.Final(err)
	refused := w.stands && errors.Is(err, ErrInvalid)
	return answered, answered && !refused || j.l.ctx.Err() != nil
}

// longest is the longest pause between two tries of a job that is not done; 0: give up. j.mu is held.
func (j *janitor) longest(w *job) time.Duration {
	switch {
	case j.closing:
		if w.pause > closePause {
			return 0
		}
		return longPause
	case !w.overdue && time.Now().Before(w.due):
		return longPause
	case !w.overdue:
		if j.overdue.Load() == overdueMost {
			return 0
		}
		w.overdue = true
		j.overdue.Add(1)
	}
	return overduePause
}

// heard is called when the store has answered another call: jobs that it has not answered for long are tried again.
func (j *janitor) heard() {
	if j.overdue.Load() == 0 {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if time.Since(j.heardAt) < heardEvery || j.closing {
		return
	}
	j.heardAt = time.Now()
	// The heap's first ones are not all of the next ones, which does not matter here.
	var now []*job
	for _, w := range j.later.all {
		if w.overdue && !w.refused && len(now) < heardMost {
			now = append(now, w)
		}
	}
	for _, w := range now {
		heap.Remove(&j.later, w.place-1)
		heap.Push(&j.ready, w)
	}
	j.work()
}

// close waits until all work is done that is not put off by a grace, or has failed often; l.ctx bounds it.
func (j *janitor) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closing = true
	var failed []*job
	for _, w := range j.later.all {
		if w.tries > 0 {
			failed = append(failed, w)
		}
	}
	j.later.all = nil
	for _, w := range failed {
		w.pause = firstPause
		heap.Push(&j.ready, w)
	}
	j.work()
	stop := context.AfterFunc(j.l.ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		j.later.all, j.ready.all = nil, nil
		j.idle.Broadcast()
	})
	defer stop()
	for j.running > 0 || len(j.ready.all) > 0 || len(j.later.all) > 0 {
		j.idle.Wait()
	}
	if j.timer != nil {
		j.timer.Stop()
	}
}

const (
	poolMost = 64 // calls at once, not counting those that hang
	// a call that is under way for so long hangs, or is one of a store that is slow for all
	poolHangs = 20 * time.Millisecond
)

// pool bounds how many calls of the driver are under way at once. A call that hangs counts no more: part of a
// store may answer nothing while another part does, and must not be kept waiting for it.
type pool struct {
	busy int // calls that do not hang yet; the owner's mutex guards it
}

// full reports whether a call must wait for another one to end, or to hang.
func (p *pool) full() bool { return p.busy >= poolMost }

// begin counts a call in. mu is the owner's mutex and is held; hangs is called with it held, when the call is found
// to hang. The function that begin returns counts the call out, and is called with mu held.
func (p *pool) begin(mu *sync.Mutex, hangs func()) (end func()) {
	p.busy++
	counted := true
	timer := time.AfterFunc(poolHangs, func() {
		mu.Lock()
		defer mu.Unlock()
		if counted {
			counted = false
			p.busy--
			hangs()
		}
	})
	return func() {
		timer.Stop()
		if counted {
			counted = false
			p.busy--
		}
	}
}
