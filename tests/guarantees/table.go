package guarantees

import "time"

// A Fault is what happens to the clients, the network or the servers.
type Fault string

// The faults.
const (
	ClientStopped   Fault = "client-stopped"
	ClientKilled    Fault = "client-killed"
	Replies         Fault = "replies"
	Requests        Fault = "requests"
	Latency         Fault = "latency"
	ClientCut       Fault = "client-cut-off"
	HolderNode      Fault = "holder-node"
	MinoritySilent  Fault = "minority-silent"
	ServerSilent    Fault = "server-silent"
	ServerRestarted Fault = "server-restarted"
	ServerKilled    Fault = "server-killed"
	PowerLoss       Fault = "power-loss"
	LeaderLost      Fault = "leader-lost"
	LeaderSilent    Fault = "leader-silent"
	LeaderCut       Fault = "leader-cut-off"
	DiskFull        Fault = "disk-full"
	ClockMoved      Fault = "clock-moved"
)

// Faults lists them in the order of the table, each with what is done.
func Faults() []struct {
	Fault Fault
	Is    string
} {
	return []struct {
		Fault Fault
		Is    string
	}{
		{ClientStopped, "a client is stopped (SIGSTOP) until its leases are over, and goes on"},
		{ClientKilled, "a client is killed (SIGKILL) while it holds"},
		{
			Replies,
			"single replies are lost with their connection; then all replies to a client come " +
				"after its leases are over",
		},
		{
			Requests,
			"all requests of a client, with what it has sent again, reach the servers after its " +
				"lease is over and another holds the lock",
		},
		{Latency, "every way takes 40 to 120 ms more, each packet another time"},
		{ClientCut, "a client reaches no server, in silence, until its leases are over"},
		{
			HolderNode,
			"a server that a holder is connected to hangs or is cut off together with it, " +
				"just after a renewal; in half of the trials the holder's " +
				"URL names that server only",
		},
		{MinoritySilent, "as many servers as leave a majority are stopped (SIGSTOP)"},
		{
			ServerSilent,
			"the server, or a majority of them, is stopped (SIGSTOP) until all " +
				"leases are over, and goes on",
		},
		{ServerRestarted, "a server is ended in order and started again with its disk"},
		{ServerKilled, "a server is killed (SIGKILL) and started again with its disk"},
		{PowerLoss, "the same, and what the disk was not promised to have is gone"},
		{LeaderLost, "the leader or master is killed, and another takes its place"},
		{
			LeaderSilent,
			"the leader or master is stopped (SIGSTOP) until another has its place, and goes on " +
				"as if it were the leader",
		},
		{LeaderCut, "the leader reaches none of the other servers, and the clients reach it"},
		{DiskFull, "the server's disk is full"},
		{ClockMoved, "the wall clock of a server goes forward by a minute, and back"},
	}
}

// Backends lists the columns, each with its name for readers, and that of its traits.
func Backends() []struct{ Backend, Is, Traits string } {
	return []struct{ Backend, Is, Traits string }{
		{"redis-always", "Redis, `appendfsync always`", "redis"},
		{"redis-everysec", "Redis, `appendfsync everysec`", "redis"},
		{"redis-none", "Redis, nothing on disk", "redis"},
		{"redis-sentinel", "Redis, 3 servers under Sentinel", "redis"},
		{"redlock", "Redlock ×5, nothing on disk", "redlock"},
		{"etcd", "etcd ×3", "etcd"},
		{"zookeeper", "ZooKeeper ×3", "zookeeper"},
		{"postgres-lease", "Postgres, `mode=lease`", "postgres-lease"},
		{"postgres-row", "Postgres, `mode=row`, writes in its transaction", "postgres-row"},
	}
}

// Holds says what is left of the lock under a fault.
type Holds int

// From nothing that could happen to everything.
const (
	NA     Holds = iota // the backend has nothing to which this could happen
	Tokens              // a second holder is possible; tokens rise, so a resource that checks them is safe
	// one holder; and a resource that checks tokens is safe from those that do not know yet that
	// they lost
	One
	Outright // what a holder writes is never mixed with what another does, without any token
)

// String is the letter of the table.
func (h Holds) String() string { return [...]string{"–", "T", "L", "E"}[h] }

// A Cell is a promise: what a backend keeps under a fault.
type Cell struct {
	Fault   Fault
	Backend string
	Holds   Holds
	Refuses bool // while it lasts nobody gets a lock, and is told that the store cannot be reached
	// Within is after how long what the fault took is there again, at the most, beyond the TTL
	// where it is the lease of a dead client that must end; 0: not promised.
	Within  time.Duration
	PlusTTL bool
	Why     string // NA: why; Tokens: why a second holder cannot be shown here
}

// row is what the backends promise under one fault, in the order of Backends.
type row [9]Cell

// Cells of which many are alike.
var (
	lock      = Cell{Holds: One}
	tokens    = Cell{Holds: Tokens}
	tx        = Cell{Holds: Outright}
	refuses   = Cell{Holds: One, Refuses: true}
	single    = Cell{Why: "there is one server"}
	equals    = Cell{Why: "no server leads"}
	failsOver = Cell{Why: "a silent master is a lost leader"}
	noClock   = Cell{Why: "no promise rests on the wall clock of a server"}
)

func within(c Cell, d time.Duration) Cell { c.Within = d; return c }

func ttlAnd(d time.Duration) Cell { return Cell{Holds: One, Within: d, PlusTTL: true} }

func notShown(why string) Cell { return Cell{Holds: Tokens, Why: why} }

var table = map[Fault]row{
	//               always  everysec  none  sentinel  redlock  etcd  zookeeper  lease  row
	ClientStopped: {lock, lock, lock, lock, lock, lock, lock, lock, tx},
	ClientKilled: {
		ttlAnd(time.Second), ttlAnd(time.Second), ttlAnd(time.Second), ttlAnd(time.Second), ttlAnd(time.Second),
		ttlAnd(2 * time.Second), ttlAnd(2 * time.Second), ttlAnd(time.Second), within(tx, time.Second),
	},
	Replies:  {lock, lock, lock, lock, lock, lock, lock, lock, tx},
	Requests: {lock, lock, lock, lock, lock, lock, lock, lock, tx},
	Latency:  {lock, lock, lock, lock, lock, lock, lock, lock, tx},
	ClientCut: {
		refuses, refuses, refuses, refuses, refuses, refuses, refuses, refuses,
		{Holds: Outright, Refuses: true},
	},
	HolderNode: {
		single, single, single,
		notShown("the replicas have a renewal a moment after the holder hears of it"),
		lock, lock, lock, single, single,
	},
	MinoritySilent: {single, single, single, single, lock, lock, lock, single, single},
	ServerSilent: {
		refuses, refuses, refuses, failsOver, refuses, refuses, refuses, refuses,
		{Holds: Outright, Refuses: true},
	},
	ServerRestarted: {
		lock, lock, tokens, tokens, lock, lock, lock, lock, tx,
	},
	ServerKilled: {
		lock, notShown("what was granted is in the kernel's hands before the reply leaves, unless the disk is slow"),
		tokens, tokens, lock, within(lock, 3*time.Second), within(lock, 3*time.Second), lock, tx,
	},
	PowerLoss: {lock, tokens, tokens, tokens, lock, lock, lock, lock, tx},
	LeaderLost: {
		single, single, single, tokens, equals, within(lock, 3*time.Second),
		within(lock, 3*time.Second), single, single,
	},
	LeaderSilent: {
		single, single, single, tokens, equals,
		notShown("a leader that goes on after its successor was chosen can have leases revoked " +
			"that this one keeps (etcd issue 15247); the holder is told at once, " +
			"unless it is cut off too"),
		{Holds: One, Within: 5 * time.Second, PlusTTL: true},
		single, single,
	},
	LeaderCut:  {single, single, single, tokens, equals, lock, lock, single, single},
	DiskFull:   {refuses, refuses, noDisk, noDisk, noDisk, refuses, refuses, refuses, {Holds: Outright, Refuses: true}},
	ClockMoved: {tokens, tokens, tokens, tokens, tokens, noClock, noClock, tokens, tx},
}

var noDisk = Cell{Why: "nothing is on a disk"}

// Table returns the promises: faults by backends, in the order of both. The caller may change what it gets.
func Table() []Cell {
	var cells []Cell
	for _, f := range Faults() {
		for i, b := range Backends() {
			c := table[f.Fault][i]
			c.Fault, c.Backend = f.Fault, b.Backend
			cells = append(cells, c)
		}
	}
	return cells
}

// Of returns the promise of a backend under a fault.
func Of(f Fault, backend string) Cell {
	for _, c := range Table() {
		if c.Fault == f && c.Backend == backend {
			return c
		}
	}
	return Cell{}
}
