package conformance

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/conformance/faultproxy"
	"github.com/fencelock/fencelock/fence"
)

// Harness is how the suite reaches a backend. Only Driver must be set. Each other
// field that is not set excludes the rules that need it, by name.
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

	// Server stops and starts the store. Rule E2 asks more of one that is a Rewinder.
	Server Server

	// Member returns a way to one member of a store of several, not the one that leads, and that member: Driver gives a
	// client with this link no other. Of the Server only Pause and Resume are used. The suite closes the link.
	Member func(ctx context.Context) (Link, Server, error)

	// URL returns what a second process opens to be another client of the store.
	// The process is this very program, run again: see Child.
	URL func(c Client) string

	// Stores is how many stores a lock is in at once, to each of which a client has connections
	// with their own upkeep; 0 stands for 1.
	Stores int

	// Short uses small numbers, for the everyday run; Full the greatest, which take minutes a backend.
	Short, Full bool

	// tiny: fewer names still in E8 and K35, for the suite's own test, which runs every rule for every mistake.
	tiny bool

	uncounted bool // the store cannot tell how many wait

	// Parallel is how many rules run at once. 0 stands for 8, and in Run for what -parallel allows. Most of a rule's
	// time is waiting.
	Parallel int

	// Guard returns a guard that lives in the store, under a prefix of its own. The rules
	// about guards ask the same of it as of fence.Memory.
	Guard func(ctx context.Context, prefix string) (fence.Guard, error)

	// Polls: waiters look every now and then and are told nothing. It excludes the rules about how soon a waiter
	// sees a release, and about how much a crowd of waiters asks for.
	Polls bool

	// Calls: Link is a CallLink, which knows calls and no bytes. It excludes the rules about bytes on the way. Without
	// Calls some of those fail over a CallLink.
	Calls bool

	// Known are rules that the backend is known to break, each with the reason. Such a failure is reported as
	// Known and fails nothing; a rule that keeps its promise despite its mark does, so that no mark stays.
	Known map[string]string

	// Writes are for a store whose holders write in the lock's own transaction (Traits.Transactional).
	Writes Writes

	// Busy is for a store that works for its holders, through the Handle of a lease. The second
	// process has it from Child.
	Busy Busy

	// Given returns a driver made by its constructor over a client that the harness
	// has, and a check, called after the driver was closed, that the client is as it was and works.
	Given func(ctx context.Context) (d backend.Driver, intact func(context.Context) error, err error)

	// Shared returns a client of the store that a program has made, and uses for its own work beside the driver's.
	Shared func(ctx context.Context) (*Shared, error)

	// Own: a driver over such a client keeps locks by connections of its own, so that none is lost
	// however long the client is used up.
	Own bool

	// Fill makes the store refuse whatever needs space, until the function that it returns is called.
	Fill func(ctx context.Context) (empty func(context.Context) error, err error)

	// Apart are the ways, besides Client.Prefix, in which clients of the store have keyspaces of
	// their own. Rule K2 checks each.
	Apart []Apart
}

// Apart is a way in which two clients of one store that have the same prefix are in different keyspaces: two databases,
// schemas, chroots, directories.
type Apart struct {
	// What describes the two in a few words, such as "two schemas of one database".
	What string
	// Driver returns a new client of the keyspace side, 0 or 1. The suite closes it.
	Driver func(ctx context.Context, side int, prefix string) (backend.Driver, error)
}

// Shared is a client of a store that a program gives to drivers and uses itself.
type Shared struct {
	// Driver returns a new driver over the client, made by its constructor. The suite closes it.
	Driver func(prefix string) (backend.Driver, error)
	// UseUp lets the program take all that the client can give at once (its connections), and
	// returns a function that gives it back. nil: the client has no such bound.
	UseUp func(ctx context.Context) (giveBack func(), err error)
	// Close closes the client, as a program does that ends. It need not wait for the drivers.
	Close func() error
}

// Client describes a new client of the store.
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
	// Left lists the things in the store for this prefix, without those whose number does not
	// grow with the number of names.
	Left(ctx context.Context, prefix string) ([]string, error)
}

// Writes writes through the Handle of a lease, and looks at what was written.
type Writes interface {
	// Write writes key through the handle.
	Write(ctx context.Context, lease backend.Handler, key string) error
	// Written reports whether key was committed.
	Written(ctx context.Context, key string) (bool, error)
}

// Busy keeps the store at work for a holder.
type Busy interface {
	// Begin sends a request through the handle that keeps the store busy for a minute. With unread, the store is
	// busy with its answer, of which nobody reads the end. Begin returns at once. The work that it starts ends with
	// the lease. key is in the request.
	Begin(ctx context.Context, lease backend.Handler, key string, unread bool) error
	// Working reports whether the store is at it.
	Working(ctx context.Context, key string, unread bool) (bool, error)
}

// Server is the store's server, or all of its servers as one.
type Server interface {
	Stop() error   // in an orderly way; the data is kept if KeepsData
	Start() error  // again, at the same address; returns when it answers
	Kill() error   // as if by SIGKILL
	Pause() error  // as if by SIGSTOP
	Resume() error // goes on
	Wipe() error   // while stopped: the data is lost
	// KeepsData reports whether everything that was confirmed is there after Kill and Start.
	KeepsData() bool
}

// Rewinder is a Server whose data can be put back from a copy. Both are called while it is stopped.
type Rewinder interface {
	Keep() error    // copies the data
	SetBack() error // puts the last copy in its place
}
