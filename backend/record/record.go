package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/fencelock/fencelock/backend"
)

const (
	// waiterLife is after how long without being renewed a place in the queue is passed over, and
	// renewPlace when a waiter renews its own.
	waiterLife, renewPlace = 4500 * time.Millisecond, 2 * time.Second
	memory                 = time.Minute // how long a record outlives its last use
	remembered             = 32          // how many ended acquisitions a record keeps
)

// record is what the store has under a name's key. Times are µs since 1970 by the store's clock; 0
// stands for the moment at which the store wrote the record, which its writer cannot know.
type record struct {
	Holder *holder       `json:"holder,omitempty"`
	Token  backend.Token `json:"token"` // of the last grant
	Queue  []waiter      `json:"queue,omitempty"`
	Ended  []ended       `json:"ended,omitempty"` // the oldest first
}

type holder struct {
	Nonce string `json:"nonce"`
	Owner string `json:"owner"`
	Since int64  `json:"since"` // when the expiry was set
	Keep  int64  `json:"keep"`  // µs from then
}

type waiter struct {
	Nonce string `json:"nonce"`
	Seen  int64  `json:"seen"` // when it renewed its place
}

type ended struct {
	Nonce    string `json:"nonce"`
	Released bool   `json:"released"` // by its holder, while it was the holder; else abandoned or broken
}

// decode reads a record that the store wrote at a moment. Foreign data is an error: the lock of a key
// that cannot be read is not free.
func decode(data []byte, stamped time.Time) (record, error) {
	var r record
	if len(data) == 0 { // there is none
		return r, nil
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return r, backend.Invalid("it is no record of a lock")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return r, backend.Invalid("something follows the record of a lock")
	}
	now := stamped.UnixMicro()
	ok := r.Token >= 0 && r.Token < 1<<53
	if h := r.Holder; h != nil {
		ok = ok && isNonce(h.Nonce) && h.Since >= 0 && h.Keep > 0 && backend.CheckOwner(h.Owner) == nil
		h.Since = orNow(h.Since, now)
		ok = ok && h.Since < 1<<53 && h.Keep < 1<<53-h.Since // so that left can count it in ns
	}
	for i := range r.Queue {
		w := &r.Queue[i]
		ok = ok && isNonce(w.Nonce) && w.Seen >= 0 && w.Seen < 1<<53
		w.Seen = orNow(w.Seen, now)
	}
	for _, e := range r.Ended {
		ok = ok && isNonce(e.Nonce)
	}
	if !ok {
		return r, backend.Invalid("a value of the record is out of range")
	}
	return r, nil
}

func isNonce(s string) bool { return len(s) == 32 && utf8.ValidString(s) }

func orNow(at, now int64) int64 {
	if at == 0 {
		return now
	}
	return at
}

// left is how long the holder's time still is; not positive: nobody holds it.
func (r *record) left(now int64) time.Duration {
	if r.Holder == nil {
		return 0
	}
	return time.Duration(r.Holder.Since+r.Holder.Keep-now) * time.Microsecond
}

// holds reports whether nonce is the holder.
func (r *record) holds(nonce string, now int64) bool {
	return r.Holder != nil && r.Holder.Nonce == nonce && r.left(now) > 0
}

// isAnothers reports whether the record names a holder that nonce is not.
func (r *record) isAnothers(nonce string) bool { return r.Holder != nil && r.Holder.Nonce != nonce }

// tidy forgets a holder whose time is over, and waiters that have not renewed their place.
func (r *record) tidy(now int64) {
	if r.left(now) <= 0 {
		r.Holder = nil
	}
	r.Queue = slices.DeleteFunc(r.Queue, func(w waiter) bool {
		return w.Seen+waiterLife.Microseconds() <= now
	})
}

// place returns where nonce stands in the queue, or -1.
func (r *record) place(nonce string) int {
	return slices.IndexFunc(r.Queue, func(w waiter) bool { return w.Nonce == nonce })
}

// leave takes nonce out of the queue.
func (r *record) leave(nonce string) {
	r.Queue = slices.DeleteFunc(r.Queue, func(w waiter) bool { return w.Nonce == nonce })
}

// end remembers how an acquisition ended.
func (r *record) end(nonce string, released bool) {
	r.Ended = append(r.Ended, ended{nonce, released})
	if n := len(r.Ended) - remembered; n > 0 {
		r.Ended = slices.Delete(r.Ended, 0, n)
	}
}

// outcome returns how an acquisition ended; nil if it has not, or nobody remembers.
func (r *record) outcome(nonce string) *ended {
	if i := slices.IndexFunc(r.Ended, func(e ended) bool { return e.Nonce == nonce }); i >= 0 {
		return &r.Ended[i]
	}
	return nil
}

// life is how long the store is to keep the record, in whole seconds: also until the clock, from which a name begins
// whose record is gone, has reached its token.
func (r *record) life(now int64) time.Duration {
	left := max(r.left(now), time.Duration(r.Token-now)*time.Microsecond, 0)
	if r.Holder != nil && r.Holder.Since == 0 {
		left = max(left, time.Duration(r.Holder.Keep)*time.Microsecond)
	}
	return (memory + left + time.Second).Truncate(time.Second)
}

// clone returns a copy that shares nothing.
func (r *record) clone() record {
	c := *r
	if r.Holder != nil {
		h := *r.Holder
		c.Holder = &h
	}
	c.Queue, c.Ended = slices.Clone(r.Queue), slices.Clone(r.Ended)
	return c
}

// queueUp gives nonce a place, or renews it when that is due, and reports whether anything changed.
func (r *record) queueUp(nonce string, now int64) bool {
	i := r.place(nonce)
	if i < 0 {
		r.Queue = append(r.Queue, waiter{Nonce: nonce})
		return true
	}
	w := &r.Queue[i]
	if w.Seen+(renewPlace-100*time.Millisecond).Microseconds() > now {
		return false
	}
	w.Seen = 0
	return true
}
