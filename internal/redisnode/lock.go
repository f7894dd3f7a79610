package redisnode

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// Value is what the value of a lock's key says: "id:number:owner", with marks. The zero value is a
// stranger's.
type Value struct {
	ID      string // a nonce, and in redlock what tells the rounds of one acquisition apart
	Number  backend.Token
	Owner   string
	Both    string // the migration of a holder in PhaseBoth
	Pending bool   // kept for a waiter that has not confirmed it
}

// Mark returns the owner of a request as the value of a lock has it: with the migration behind a
// NUL, which no owner has, for a holder in PhaseBoth.
func Mark(r *backend.Request) string {
	if r.Phase == backend.PhaseBoth {
		return r.Owner + "\x00" + r.Move
	}
	return r.Owner
}

// Parse reads the value of a lock's key.
func Parse(text string) Value {
	parts := strings.SplitN(text, ":", 3)
	if len(parts) != 3 || len(parts[0]) < 32 || strings.Trim(parts[0], "0123456789abcdef.") != "" {
		return Value{}
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || n <= 0 {
		return Value{}
	}
	v := Value{ID: parts[0], Number: n}
	v.Owner, v.Pending = strings.CutSuffix(parts[2], "\x00")
	v.Owner, v.Both, _ = strings.Cut(v.Owner, "\x00")
	return v
}

// Process returns a new random name, for the pushes to one driver.
func Process() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Millis is a duration as Redis takes it. It rounds up: a server may keep a lock longer, never
// shorter.
func Millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// UntilExpiry is when a waiter looks again by itself, where the lock's key expires in so many ms: soon
// after that, and after most at the latest. A key without expiry has a negative number.
func UntilExpiry(pttl int64, most time.Duration) time.Duration {
	if pttl < 0 {
		return most
	}
	pttl = min(pttl, most.Milliseconds())
	return min(most, time.Duration(pttl)*time.Millisecond+JustAfter)
}

// JustAfter is how long after a key's expiry a waiter looks.
const JustAfter = 5 * time.Millisecond

// Report returns the migration and the id in the key of what a client has reported. ok: it is one.
func Report(key string) (move, id string, ok bool) {
	key, ok = strings.CutPrefix(key, backend.ClientKey)
	move, id, _ = strings.Cut(key, "\x00")
	return move, id, ok
}

// Records yields what load returns, as Load of a Mover does.
func Records(load func() ([]backend.Record, error)) iter.Seq2[backend.Record, error] {
	return func(yield func(backend.Record, error) bool) {
		all, err := load()
		if err != nil {
			yield(backend.Record{}, err)
			return
		}
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// Read takes in a reply of as many parts as these, each of their types, and reports whether it is one.
func Read(reply any, parts ...any) bool {
	res, _ := reply.([]any)
	ok := len(res) == len(parts)
	for i := 0; ok && i < len(parts); i++ {
		switch to := parts[i].(type) {
		case *string:
			*to, ok = res[i].(string)
		case *int64:
			*to, ok = res[i].(int64)
		case *[]any:
			*to, ok = res[i].([]any)
		}
	}
	return ok
}

// Unexpected is the error for a reply that no script of ours gives.
func Unexpected(reply any) error { return fmt.Errorf("unexpected reply of the server: %v", reply) }
