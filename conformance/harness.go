package conformance

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/fence"
)

// Harness is how the suite reaches a backend. Only Driver must be set; what is
// missing besides excludes the rules that need it, by name.
type Harness struct {
	// Name is shown in reports.
	Name string

	// Driver returns a new client of the store, with connections and state of its
	// own, under the prefix and through the link that c has. The suite closes it.
	Driver func(ctx context.Context, c Client) (backend.Driver, error)

	// Link returns a new way to the store that can be made to fail: a fault proxy,
	// or several behind one Link for a store of several nodes. For a store without a network,
	// see CallLink. The suite closes it.
	Link func(ctx context.Context) (Link, error)

	// Store looks at the store behind the library's back.
	Store Store

	// Server stops and starts the store.
	Server Server

	// URL returns what a second process opens to be another client of the store.
	// The process is this very program, run again: see Child.
	URL func(c Client) string

	// Stores is how many stores a lock is in at once, to each of which a client has connections with their own upkeep; 0 stands for 1.
	Stores int

	// Short uses small numbers, for the everyday run; Full the greatest, which take minutes a backend.
	Short, Full bool

	// tiny: fewer names still in E8, for the suite's own test, which runs every rule for every mistake.
	tiny bool

	// Parallel is how many rules run at once. 0 stands for 8, and in Run for what -parallel allows. Most of a rule's
	// time is waiting.
	Parallel int

	// Guard returns a guard that lives in the store, under a prefix of its own. The rules
	// about guards hold it to what they hold fence.Memory to.
	Guard func(ctx context.Context, prefix string) (fence.Guard, error)

	// Calls: Link is a CallLink, which knows calls and no bytes. Rules about lost pushes are excluded.
	Calls bool

	// Given returns a driver made by its constructor over a client that the harness
	// has, and a check, called after the driver was closed, that the client is as it was and works.
	Given func(ctx context.Context) (d backend.Driver, intact func(context.Context) error, err error)
}

// Client is what a new client of the store is like.
type Client struct {
	Prefix string // the keyspace; never empty
	Link   Link   // nil: straight to the store
}

// Link is a way to the store. *faultproxy.Proxy is one.
type Link interface {
	Set(faultproxy.Mode)       // hold requests or replies, delay, refuse
	Cut()                      // reset every connection
	LoseReplies(n int)         // the next n requests are done, but their replies are lost
	Counts() faultproxy.Counts // Requests counts what clients sent
	Close() error
}

// Store is a look at the store without the library.
type Store interface {
	// Look reports whether the lock is held, and how long its expiry is away; 0 if
	// the store has none of its own or cannot tell.
	Look(ctx context.Context, prefix, name string) (held bool, expires time.Duration, err error)
	// Take takes the lock away from its holder: deletes it, ends its session.
	Take(ctx context.Context, prefix, name string) error
	// Left lists what is in the store for this prefix besides what is constant
	// however many names there are.
	Left(ctx context.Context, prefix string) ([]string, error)
}

// Server is the store's server, or all of its servers as one.
type Server interface {
	Stop() error   // in an orderly way; the data is kept if KeepsData
	Start() error  // again, at the same address; returns when it answers
	Kill() error   // as if by SIGKILL
	Pause() error  // as if by SIGSTOP
	Resume() error // goes on
	Wipe() error   // while stopped: the data is lost
	// KeepsData reports whether what was confirmed is there after Kill and Start.
	KeepsData() bool
}
