// Package fence is the resource's side of a lock: guards that refuse the access
// of a holder that was overtaken. A lease cannot do that: a process that is stopped between its
// look at the lease and its write writes too late. The store grants every later holder a
// greater fencing token; a guard remembers the greatest that it has seen of a resource and refuses
// lower ones (Kleppmann, "How to do distributed locking", 2016).
//
// The check must be atomic with the access that it protects, and reads must be checked too: a
// newer holder's read is what makes an older one's write a lost update. [Memory] guards what lives in
// this process, [Handler] what is reached over HTTP. This package imports no store; guards that are atomic with an
// access to a store live with that store's driver: postgres.CheckToken, redis.FencedScript, etcd.Guard.
package fence

import (
	"context"
	"strconv"

	"github.com/fencelock/fencelock/backend"
)

// Token is a fencing token.
type Token = backend.Token

// Slot is the resource of one permit of a Semaphore, by the slot of its lease: resource#slot. One that is guarded
// as a whole would refuse permits that are live, for a newer one has a greater token.
func Slot(resource string, slot int) string { return resource + "#" + strconv.Itoa(slot) }

// A Guard remembers the greatest token that it has seen for each resource. It
// must be asked with every access, reads included, and atomically with it.
type Guard interface {
	// Check returns nil for a token that is equal to the greatest seen or greater,
	// which it remembers, and a *backend.StaleError, which matches ErrStale, for a lower one. A token
	// that is not positive is ErrInvalid.
	Check(ctx context.Context, resource string, t Token) error
}

// A Doer is a Guard that makes an access atomic with its check.
type Doer interface {
	Guard
	// Do checks t and, unless it is stale, calls access before any other check of this resource can
	// go on. It returns Check's error, access's, or ctx.Err() if ctx ended while another access to
	// the resource was under way. An access that failed leaves t remembered: it may have read, or
	// have done half of its work.
	Do(ctx context.Context, resource string, t Token, access func() error) error
}
