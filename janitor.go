package fencelock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	maxCleaners = 64              // goroutines at most
	cleanLimit  = 2 * time.Second // of one try
	cleanFirst  = cleanLimit / 4  // of the first one, so that what is stuck does not hold up the others
	firstPause  = 20 * time.Millisecond
	longPause   = time.Second
	// Once TTL + grace + cleanExtra are over, most stores have let go by themselves. One in which locks live as long as a
	// session of this process has not: so tries go on, less often, for as many requests as a program can be expected to leave.
	cleanExtra   = 10 * time.Second
	overduePause = 30 * time.Second
	overdueMost  = 10_000
	// When the store has answered another call, some of them are tried at once, this often at the most.
	heardEvery = time.Second
)

// janitor undoes, in the background, acquisitions that are unwanted or whose
// outcome is unknown, and frees what a lost lease may have left. It has goroutines only while
// there is work.
type janitor struct {
	l *Locker

	mu       sync.Mutex
	jobs     []*job
	later    map[*job]struct{} // those whose timer runs
	cleaners int
	overdue  atomic.Int64 // jobs
	heardAt  time.Time
	closing  bool // no new waiting: what is left is tried once more and given up
	idle     sync.Cond
}

// job is one acquisition to undo.
type job struct {
	r       *backend.Request
	began   time.Time
	pause   time.Duration // before the next try
	timer   *time.Timer
	due     time.Time // when the store should have let go
	overdue bool      // it is past that
	dice    dice
}

// add hands r over: Abandon is called until the store has confirmed it.
func (j *janitor) add(r *backend.Request) { j.addAfter(r, 0) }

// addLost hands over the request of a lost hold. Its grace is kept: what may be
// left of the lock is freed only then. A Close in between leaves that to the store's expiry.
func (j *janitor) addLost(r *backend.Request) { j.addAfter(r, r.Grace) }

func (j *janitor) addAfter(r *backend.Request, wait time.Duration) {
	now := time.Now()
	w := &job{r: r, began: now, pause: firstPause, due: now.Add(wait + r.TTL + r.Grace + cleanExtra)}
	w.dice.seed(r.Nonce, 0)
	j.mu.Lock()
	defer j.mu.Unlock()
	if wait > 0 {
		if !j.closing {
			j.delay(w, wait)
		}
		return
	}
	j.push(w)
}

// delay makes w a job after wait; j.mu is held.
func (j *janitor) delay(w *job, wait time.Duration) {
	if j.later == nil {
		j.later = map[*job]struct{}{}
	}
	j.later[w] = struct{}{}
	w.timer = time.AfterFunc(wait, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if _, still := j.later[w]; still {
			delete(j.later, w)
			j.push(w)
		}
	})
}

// push makes w a job now; j.mu is held.
func (j *janitor) push(w *job) {
	j.jobs = append(j.jobs, w)
	if j.cleaners < maxCleaners {
		j.cleaners++
		go j.work()
	}
}

func (j *janitor) work() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for len(j.jobs) > 0 {
		w := j.jobs[0]
		j.jobs[0] = nil // the backing array lives on
		j.jobs = j.jobs[1:]
		j.mu.Unlock()
		done := j.clean(w)
		j.mu.Lock()
		if done && w.overdue {
			j.overdue.Add(-1)
		}
		if most := j.longest(w); !done && most > 0 {
			// Not on this goroutine's time: others may go to a part of the store that answers.
			j.delay(w, w.pause/2+w.dice.below(w.pause))
			w.pause = min(2*w.pause, most)
		}
	}
	j.jobs = nil
	j.cleaners--
	if j.cleaners == 0 {
		j.idle.Broadcast()
	}
}

// clean abandons the request once, and reports whether that is the end of it.
func (j *janitor) clean(w *job) bool {
	most := cleanLimit
	if w.pause == firstPause {
		most = cleanFirst
	}
	ctx, cancel := context.WithTimeout(j.l.ctx, most)
	defer cancel()
	err := j.l.driver.Abandon(ctx, w.r)
	if err == nil || errors.Is(err, ErrLost) {
		j.l.emit(context.Background(), Event{Kind: CleanedUp, Name: w.r.Name, Owner: w.r.Owner, Took: time.Since(w.began)})
	}
	return err == nil || backend.Final(err) || j.l.ctx.Err() != nil
}

// longest is the longest pause between two tries; 0: give up. j.mu is held.
func (j *janitor) longest(w *job) time.Duration {
	if !w.overdue && time.Now().Before(w.due) {
		return longPause
	}
	if !w.overdue {
		if j.overdue.Load() == overdueMost {
			return 0
		}
		w.overdue = true
		j.overdue.Add(1)
	}
	return overduePause
}

// heard is told when the store has answered a call: what it has been asked in vain for long can have an answer now.
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
	for w := range j.later {
		if len(j.jobs) >= maxCleaners {
			return
		}
		if w.overdue {
			w.timer.Stop()
			delete(j.later, w)
			j.push(w)
		}
	}
}

// close waits until all work is done that is not put off by a grace; l.ctx bounds it.
func (j *janitor) close() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closing = true
	for w := range j.later {
		w.timer.Stop()
		if w.pause > firstPause { // a try that failed
			j.push(w)
		}
	}
	clear(j.later)
	stop := context.AfterFunc(j.l.ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		for w := range j.later {
			w.timer.Stop()
		}
		clear(j.later)
		j.idle.Broadcast()
	})
	defer stop()
	for j.cleaners > 0 || len(j.later) > 0 {
		j.idle.Wait()
	}
}
