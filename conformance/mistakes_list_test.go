package conformance

// mistakes is the table: for every rule at least one behaviour that differs from a sound one and that
// the rule catches. Those of mistakesOverWire need a wire or a second process.
var mistakes = []mistake{
	// Acquire.
	{
		flaw: sessionShares, catches: "A1 A11 B6 C5 E9 F1",
		says: "a second request of the holder's own session is granted too (etcd: " +
			"two mutexes on one session)",
	},
	{flaw: threeAtOnce, catches: "A2 B9 J2 K5 K49", says: "a lock costs a connection, and the pool has three"},
	{
		flaw: triesUsedUp, catches: "A3 A11 A13 E1 F6",
		says: "the state of retries is shared and never reset, so a name is locked nine " +
			"times at most (redislock)",
	},
	{
		name: "ctx's lease not known", alter: only("A4", falseLoss), catches: "A4",
		says: "the driver reports each lock as lost, so that no ctx carries one (the engine " +
			"keeps A4: made under it alone)",
	},
	{
		name: "try waits", alter: slowTry, catches: "A5",
		says: "TryLock asks ten times before it says that the lock is taken",
	},
	{
		name: "wait looks at its ctx late", alter: looksLate, catches: "A6",
		says: "the end of the ctx is seen at the next poll (pglock, a hung Redlock node)",
	},
	{
		name: "nil, nil on cancel", alter: nilOnCancel, catches: "A6 A8",
		says: "a cancelled wait returns no lock and no error (consul)",
	},
	{
		name: "busy upkeep", alter: upkeep, catches: "A7 A9 C6 F5",
		says: "the driver asks the store 25 times a second whether it is there",
	},
	{flaw: placeKept, catches: "A8", says: "Abandon leaves the place in the queue (etcd TryLock leaves its key)"},
	{flaw: checkThenSet, catches: "A11", says: "looking and taking are two steps"},
	{flaw: deadForTry, catches: "A13", says: "only a waiter takes over a dead lock (pglock, dynamolock)"},
	{
		flaw: resentIsTaken, catches: "C5",
		says: "an acquire sent again after a lost reply finds its own lock " +
			"taken (redsync over go-redis)",
	},
	{flaw: resentNewToken, catches: "C5", says: "an acquire sent again draws another token"},
	{
		flaw: resentExpiry, catches: "K10",
		says: "an acquire sent again finds its grant, and leaves the expiry of the first copy",
	},
	{flaw: abandonForgotten, catches: "C5", says: "a request that arrives after it was abandoned is granted"},
	{flaw: ghost, catches: "C10 C12", says: "a grant that nobody wants stays until its TTL (redsync)"},
	{
		flaw: abandonAnybody, catches: "A8 B2 B6",
		says: "Abandon frees the lock whoever holds it, but for one that was broken",
	},

	// Names.
	{flaw: nameFolded, catches: "A10", says: "names differ by case only and meet"},
	{flaw: nameCut, catches: "A10", says: "names are cut at 255 bytes"},
	{flaw: nameIsPath, catches: "A10", says: "a collides with a/b (etcd concurrency)"},
	{flaw: nameNormal, catches: "A10", says: "the store normalises Unicode"},
	{flaw: nameTagged, catches: "A10", says: "what stands in braces is taken for the name (Redis Cluster slots)"},
	{flaw: ownerUnknown, catches: "A10", says: "Inspect shows the owner of who asked last, and not that of who holds"},
	{flaw: ownerLine, catches: "A10", says: "a record has a line for the owner, and Inspect reads the first"},
	{flaw: otherUnit, catches: "A10", says: "Inspect shows the milliseconds of an expiry as seconds"},
	{flaw: takenForLeak, catches: "A10", says: "Inspect takes every lock for one that has no expiry"},
	{flaw: listedTwice, catches: "A10", says: "List names twice what a cursor meets twice (SCAN, while a table grows)"},
	{flaw: nameTrimmed, catches: "A10", says: "the store trims spaces"},
	{flaw: listPattern, catches: "A10", says: "List gives the beginning of the names to SCAN MATCH or LIKE as it is"},
	{flaw: breakPattern, catches: "A10", says: "Break gives the name to KEYS or LIKE as it is"},
	{flaw: prefixCut, catches: "A12 K2", says: "the prefix counts up to its first separator"},
	{
		flaw: databasesMeet, catches: "K2",
		says: "two schemas of a database draw the numbers of their advisory locks " +
			"alike, and share the locks",
	},
	{flaw: prefixPattern, catches: "K2", says: "List gives the prefix to SCAN MATCH or LIKE as it is"},
	{
		flaw: noncesMeet, catches: "K2",
		says: "a lock that was released in one keyspace is taken for released in another, to " +
			"which a migration sends the same nonce",
	},

	// Release.
	{
		name: "release delivered twice", alter: deliveredTwice, catches: "A11 B1 B6 C11 E1 E10 F1 F8",
		says: "a release comes again with the client's next request and frees the " +
			"next holder (etcd#22082)",
	},
	{flaw: releaseAnybody, catches: "B2 B6", says: "DEL without a look at the holder: release without owner check"},
	{
		flaw: releaseByPrefix, catches: "B2 B6",
		says: "the owner is compared and not the nonce (companyinfo/glock, redislock)",
	},
	{
		name: "slow release", alter: only("B3", slowRelease), catches: "B3",
		says: "the release outlasts what an Unlock with a done ctx has (the engine keeps " +
			"B3: made under it alone)",
	},
	{flaw: releaseLater, catches: "B4", says: "a release is swept up later"},
	{
		name: "release error swallowed", alter: swallowed, catches: "B5",
		says: "a release that did not arrive is taken for one that did",
	},
	{
		flaw: fewRemembered, catches: "B9",
		says: "what the next release writes takes the place of most of a " +
			"crowd's (a ring of nonces)",
	},
	{flaw: releasedTwiceLost, catches: "B6", says: "a release repeated after a lost reply is told ErrLost"},
	{
		name: "one failure fails the rest", alter: stopsAtFailure, catches: "B7",
		says: "after one lost lock no release works any more",
	},
	{flaw: releaseSaysYes, catches: "B8", says: "releasing a lock that was lost returns nil (etcd)"},
	{
		flaw: releaseWrites, catches: "K33",
		says: "a release writes a mark, which a store that is full refuses (etcd, NOSPACE)",
	},
	{
		name: "Close frees", alter: freesAtClose, catches: "C14",
		says: "the driver frees at its Close what it holds, as a session does, " +
			"and its traits do not say so",
	},
	{flaw: graceAtRelease, catches: "C8", says: "an Unlock starts the grace"},

	// Hold.
	{flaw: neverExpires, catches: "A10 A13 C1 C9", says: "the store keeps a dead holder's lock"},
	{flaw: expiresEarly, catches: "C1 C7 D3", says: "the store's expiry is shorter than the TTL"},
	{flaw: expiresLate, catches: "A13 C1 C4", says: "the store raises the TTL and nobody reads it (etcd)"},
	{flaw: graceIgnored, catches: "C8", says: "the store frees the lock at the TTL whatever the grace"},
	{flaw: shortNumbers, catches: "C9", says: "the store counts the milliseconds of an expiry in 32 bits"},
	{flaw: sharedTTL, catches: "C9", says: "all leases of a session have the shortest TTL"},
	{flaw: longestTTL, catches: "C9", says: "a session has all its locks for the longest TTL among them"},
	{flaw: lifetime, catches: "C2", says: "the session under the lock has a bounded lifetime"},
	{flaw: renewNoManual, catches: "C3", says: "renewals by hand do not reach the store"},
	{flaw: renewRevives, catches: "C4", says: "a renewal resurrects what has expired"},
	{flaw: renewCreates, catches: "C4", says: "a renewal creates what is gone (SET instead of PEXPIRE)"},
	{flaw: renewAnybody, catches: "C4", says: "a renewal prolongs the lock whoever holds it"},
	{
		name: "renews up to a loss", alter: upToALoss, catches: "C4",
		says: "those behind a lost one are not renewed, and told that they are",
	},
	{flaw: renewSetsExpiry, catches: "C4", says: "a renewal that is refused sets the next holder's expiry"},
	{flaw: renewSaysYes, catches: "C4", says: "a renewal answers nil when the lock is not ours"},
	{
		flaw: renewTooSoon, catches: "D6",
		says: "a second renewal at once is refused (that a Deadline has its monotonic " +
			"reading is the engine's)",
	},
	{
		flaw: reportsLate, catches: "K1",
		says: "a member confirms a renewal that the others hear of later (ZooKeeper's followers)",
	},
	{
		name: "failed renewal is a loss", alter: unknownIsLost, catches: "C5 D4",
		says: "one failed heartbeat ends the lock (pglock#41, consul#830, dynamolock#280)",
	},
	{
		name: "renews after release", alter: renewsOn, catches: "C6",
		says: "a renewal goes on after the unlock (redisson#7272)",
	},
	{flaw: heartbeatOfWait, catches: "C11", says: "the ctx of the wait owns the heartbeat (pglock, valkeyrie)"},
	{
		name: "counted from the reply", alter: askedLate, catches: "C12 C13",
		says: "the lease counts from the reply and not from before the request",
	},
	{
		name: "64 waits at a time", alter: sixtyFourWaits, catches: "K6",
		says: "the 65th name that a process waits for is asked for once another wait has ended",
	},
	{
		name: "a line taken for an outage", alter: lineIsOutage, catches: "K6 K49",
		says: "whose turn among the requests of a process does not come within 3 s is told of an outage",
	},
	{
		name: "hundred renewed at once", alter: hundredOnly, catches: "J2",
		says: "a batch of renewals is cut at a hundred",
	},

	// Loss.
	{
		name: "release taken for a loss", alter: stalePush, catches: "D1",
		says: "the late news of an own release is reported as the next lock's loss",
	},
	{flaw: breakSilent, catches: "D2", says: "the holder is not told of Break (consul#18271)"},
	{flaw: tellsAll, catches: "D2", says: "a revocation is reported to all holders of the process"},
	{flaw: forgetsLocks, catches: "D7", says: "a restart loses the locks although the data is kept"},
	{
		name: "never again after a loss", alter: neverAgain, catches: "D8",
		says: "after a loss the same object cannot lock (go-zookeeper, consul#2371)",
	},
	{flaw: waitEndsHold, catches: "D9", says: "a waiter whose session died is told that it holds (etcd#11456)"},

	// Token.
	{flaw: counterPerLock, catches: "E1 E4 E9", says: "the counter is deleted at release (madelson on MongoDB)"},
	{flaw: counterPlain, catches: "E2", says: "a plain counter starts again with the store"},
	{
		flaw: anchorsMissing, catches: "E2",
		says: "the counter follows the clock only where it is missing, and a stale replica or a " +
			"backup has an older one",
	},
	{flaw: tokenSeconds, catches: "E1 E4 E10", says: "the token is the time in seconds, the same for two"},
	{flaw: tokenNanos, catches: "E6", says: "the token is above 2^53"},
	{flaw: tokenRandom, catches: "E1 E10 K2 K9", says: "the token is a random secret"},
	{flaw: tokenEarly, catches: "E1", says: "the number is drawn before the lock is won (pglock)"},
	{
		name: "token by a second request", alter: secondTrip, catches: "E3",
		says: "the token is read by a separate command (Redisson)",
	},
	{flaw: renewNewToken, catches: "E3", says: "the store counts a renewal as a grant"},
	{flaw: rowPerName, catches: "E8 J1", says: "a counter for each name that can never be deleted (redisson#6510)"},
	{
		name: "block not reserved", alter: reservesNothing, catches: "E10",
		says: "tokens are granted as a block that later grants draw from too",
	},
	{
		flaw: blockFreed, catches: "K9",
		says: "the numbers that a broken holder reserved and has not used are granted again",
	},
	{flaw: floorIgnored, catches: "E9", says: "the floor of a request is ignored"},
	{flaw: floorSpends, catches: "K7", says: "one floor at the end of the numbers spends those of all names"},
	{flaw: markSpends, catches: "K7", says: "a guard remembers any number, and one bad one shuts all out for good"},

	// Waiting and resources.
	{
		name: "wait ends with the store", alter: endsWithTheStore, catches: "K32",
		says: "a waiter goes home as soon as the store does not answer (an etcd " +
			"lease of 3 s under its place)",
	},
	{
		name: "lost beside an observer", alter: only("K12", falseLoss), catches: "K12",
		says: "the driver reports each lock as lost (the engine keeps K12: made under it alone)",
	},
	{
		flaw: placesAge, catches: "K34",
		says: "the session under a place is not kept alive, and whoever loses it queues again",
	},
	{flaw: lifo, catches: "F1", says: "the last in line is the first"},
	{flaw: overtaking, catches: "F1", says: "a try takes the lock before the waiters look again"},
	{name: "all waiters woken", alter: storm, catches: "F5", says: "a release wakes every waiter and each asks"},
	{flaw: holderWaits, catches: "F6", says: "the holder keeps a place among the waiters"},
	{
		flaw: claimKept, catches: "F8",
		says: "a grant that another's release has made still ends with the " +
			"claim when it is confirmed",
	},
	{flaw: breakWakesNone, catches: "F8", says: "Break frees the lock, and those who wait see it when they look"},
	{flaw: breakLeavesRow, catches: "D8", says: "what tells an old holder of its loss is kept for ever"},
	{flaw: waitLeavesRow, catches: "F6 J1", says: "a wait leaves its queue behind"},
	{flaw: failedTryWrites, catches: "J1", says: "every failed try writes a row (pglock)"},
	{name: "a goroutine a lock", alter: leaks, catches: "J1", says: "each lock starts a goroutine that nobody ends"},
	{name: "dead connections kept", alter: poisoned, catches: "J3", says: "broken connections stay in the pool"},
	{flaw: commitsUndone, catches: "K11", says: "a release commits what a function of Do wrote before it failed"},
	{flaw: writesAtOnce, catches: "K11", says: "what a holder writes is there before it has unlocked"},
	{flaw: closesGiven, catches: "J4", says: "Close closes a client that was given"},
	{flaw: changesGiven, catches: "J4", says: "the driver changes the client's timeout"},
	{
		name: "a failed release is given up", alter: releasesOnce, catches: "B5 K5",
		says: "what could not be released while the store was away counts as lost when it is back",
	},
	{
		name: "an outage is a free lock", alter: outageIsFree, catches: "K5",
		says: "Inspect takes no answer for no lock",
	},
	{
		name: "an outage is a holder", alter: outageIsHolder, catches: "K5",
		says: "a try takes no answer for a refusal",
	},
	{name: "an outage is a Break", alter: outageIsBreak, catches: "C5", says: "Break takes no answer for a yes"},
	{flaw: ctxUnheeded, catches: "K4", says: "a call waits for a connection of the client whatever its ctx"},
	{flaw: renewsByClient, catches: "K45", says: "renewals wait for a connection that the program has taken"},
	{flaw: closeWaits, catches: "K46", says: "Close waits for a client that the program has closed"},
	{flaw: clientIsHolder, catches: "K47", says: "what two Lockers over one client ask for is taken for one holder's"},
}

// mistakesOverWire are checked on a toy over TCP, with a second process: under the rules that must
// catch them and a sample of the others, for this takes real time.
var mistakesOverWire = []mistake{
	{
		flaw: trustsAhead, catches: "D5",
		says: "a grant with Wait is stamped by a clock that is ahead of the " +
			"request (absolute times)",
	},
	{
		flaw: tokenConstant, catches: "D5 E1 E3 E4 E5 E9 E10 G1 G2 G3",
		says: "the token is the same for all, so that no guard can tell them apart",
	},
	{flaw: deadStalls, catches: "F2", says: "a dead waiter whose turn has come stalls the queue (redisson#3730)"},
	{flaw: nextTakesOver, catches: "F3", says: "a waiter takes the end of the one before it for the end of the holder"},
	{
		flaw: workKeeps, catches: "K3",
		says: "the time of a lease stands still while the store works for its holder (a " +
			"statement in a transaction that idles out)",
	},
	{
		flaw: pushOnly, catches: "F4 F7 K8",
		says: "a waiter swallows the error of its connection and waits for a push " +
			"that was lost (rueidislock)",
	},
	{
		flaw: turnKept, catches: "K30",
		says: "a waiter whose turn has come is granted the lock whenever it asks, though its " +
			"place has expired and the next one holds",
	},
	{flaw: impatient, catches: "K31", says: "one failed look ends a wait"},
	{flaw: graceIgnored, catches: "C8 G3", says: "the store frees the lock at the TTL whatever the grace"},
	{flaw: deadLeaveRow, catches: "G2 G3", says: "what a dead holder had beside its lock has no expiry"},
	{flaw: staysOnLine, catches: "J1", says: "Close leaves a connection of the driver's client open"},
	{flaw: checkThenSet, catches: "G1", says: "looking and taking are two steps"},
	{flaw: crowdStays, catches: "K35", says: "the store chokes on the names of one dead process (ZOOKEEPER-4306)"},
	{flaw: expiresLate, catches: "A13 C4 D5 G2 G3 G4", says: "the store raises the TTL and nobody reads it (etcd)"},
	{
		flaw: copyTakes, catches: "K20 K25",
		says: "a release forgets the nonce although a copy of its request is still under way",
	},
}

// sample are the rules that a mistake over the wire is checked under besides: quick ones, of which
// it must leave nine in ten whole.
const sample = "A1 A2 A3 A4 A5 A6 A7 A8 A9 A10 A12 B1 B3 B4 B6 B8 C3 C9 D1 D2 D5 D6 D8 E1 E3 E4 " +
	"E6 E9 F1 F2 F3 F4 G1 G3 J4"
