package history

import (
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// A Log writes one process's part of a history. It may be used by many goroutines.
type Log struct {
	process, phase string

	mu  sync.Mutex
	out io.Writer
	err error
}

// NewLog returns a log that writes each event to out with one Write, as it comes: out should not buffer. No other
// process has the same name. phase is the phase of a migration, or empty.
func NewLog(out io.Writer, process, phase string) *Log {
	return &Log{process: process, phase: phase, out: out}
}

// Err returns the first error of writing, after which nothing was written any more.
func (l *Log) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Write adds an event of this process.
func (l *Log) Write(e Event) {
	e.Process, e.Phase = l.process, l.phase
	line, err := json.Marshal(e)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err = errors.Join(l.err, err); l.err == nil {
		_, l.err = l.out.Write(append(line, '\n'))
	}
}

// A Lease is a lease as a Log sees it. *fencelock.Lease is one.
type Lease interface {
	Name() string
	Mode() backend.Mode
	Slot() int
	Token() backend.Token
	Deadline() time.Time
	Done() <-chan struct{}
}

// A Hold is a lease that was recorded, and whose end will be.
type Hold struct {
	log   *Log
	lease Lease
	stop  chan struct{}
	once  sync.Once
	done  chan struct{}
}

// Hold records that a lease was granted, after a call that began at called. Its end is recorded as soon as the lease is
// lost, or when End is called.
func (l *Log) Hold(lease Lease, called Moment) *Hold { return l.hold(lease, called, 0, 0) }

// HoldOf is Hold for a permit of limit.
func (l *Log) HoldOf(lease Lease, called Moment, limit int) *Hold {
	return l.hold(lease, called, limit, 0)
}

// HoldAbove is Hold for a lease whose token was to exceed floor.
func (l *Log) HoldAbove(lease Lease, called Moment, floor backend.Token) *Hold {
	return l.hold(lease, called, 0, floor)
}

func (l *Log) hold(lease Lease, called Moment, limit int, floor backend.Token) *Hold {
	first := lease.Deadline()
	granted := Event{
		Kind: Granted, Name: lease.Name(), Token: lease.Token(), Called: called, At: Now(), Until: moment(first),
		Mode: lease.Mode(), Slot: lease.Slot(), Limit: limit, Floor: floor,
	}
	l.Write(granted)
	h := &Hold{log: l, lease: lease, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(h.done)
		select {
		case <-lease.Done():
		case <-h.stop:
		}
		ended := Event{Kind: Ended, Name: lease.Name(), Token: lease.Token(), At: Now(), Until: granted.Until}
		if last := lease.Deadline(); !last.Equal(first) { // only then was it renewed, as Verify reads it
			ended.Until = moment(last)
		}
		h.log.Write(ended)
	}()
	return h
}

// End records that the lease is not trusted any more: call it before Unlock. Only the first call counts.
func (h *Hold) End() {
	h.once.Do(func() { close(h.stop) })
	<-h.done
}

func moment(t time.Time) Moment { return Now().After(time.Until(t)) }

// Wanted records that the process is about to add one to a counter with a token.
func (l *Log) Wanted(counter string, t backend.Token) {
	l.Write(Event{Kind: Wanted, Name: counter, Token: t, At: Now()})
}

// Added records that one was added, and that the counter is value now.
func (l *Log) Added(counter string, t backend.Token, value int64) {
	l.Write(Event{Kind: Added, Name: counter, Token: t, Value: value, At: Now()})
}

// Freed records how Unlock ended, which was called at called.
func (l *Log) Freed(name string, t backend.Token, called Moment, r Result) {
	l.Write(Event{Kind: Freed, Name: name, Token: t, Called: called, At: Now(), Result: r})
}

// Shown records the resource's answer to a token, for a read or a write that began at called.
func (l *Log) Shown(name string, t backend.Token, called Moment, r Result) {
	l.Write(Event{Kind: Shown, Name: name, Token: t, Called: called, At: Now(), Result: r})
}
