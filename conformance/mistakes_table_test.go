package conformance

// flaw is a mistake that the toy store can make; "" is none.
type flaw string

// The flaws of the toy store, by theme.
const (
	sessionShares    flaw = "two of a session hold"
	checkThenSet     flaw = "check, then set"
	threeAtOnce      flaw = "three locks at once"
	triesUsedUp      flaw = "tries used up"
	deadForTry       flaw = "dead lock refused to a try"
	overtaking       flaw = "try overtakes waiters"
	resentIsTaken    flaw = "re-sent acquire: taken"
	resentNewToken   flaw = "re-sent acquire: new token"
	abandonForgotten flaw = "abandoned request granted late"
	ghost            flaw = "ghost of an abandoned grant"
	placeKept        flaw = "abandoned place kept"
	abandonAnybody   flaw = "abandon without owner check"

	nameFolded  flaw = "names folded"
	nameCut     flaw = "names cut at 255"
	nameIsPath  flaw = "a meets a/b"
	nameNormal  flaw = "names normalised"
	nameTagged  flaw = "names by hash tag"
	nameTrimmed flaw = "names trimmed"
	prefixCut   flaw = "prefix cut"

	releaseAnybody    flaw = "release without owner check"
	releaseByPrefix   flaw = "release by owner, not nonce"
	releasedTwiceLost flaw = "repeated release: lost"
	releaseSaysYes    flaw = "release of a lost lock: nil"
	releaseLater      flaw = "release swept later"
	graceAtRelease    flaw = "grace applied on Unlock"

	neverExpires    flaw = "never expires"
	expiresEarly    flaw = "expiry before the TTL"
	expiresLate     flaw = "expiry 3 s late"
	graceIgnored    flaw = "grace ignored"
	sharedTTL       flaw = "one TTL for all leases"
	lifetime        flaw = "bounded lifetime"
	renewNoManual   flaw = "manual renewal ignored"
	heartbeatOfWait flaw = "acquire ctx owns the heartbeat"
	renewTooSoon    flaw = "second renewal refused"
	renewRevives    flaw = "renewal resurrects"
	renewCreates    flaw = "renewal creates"
	renewAnybody    flaw = "renewal without owner check"
	renewSaysYes    flaw = "renewal always nil"
	renewNewToken   flaw = "renewal takes a token"
	breakSilent     flaw = "holder not told of Break"
	tellsAll        flaw = "all holders told of Break"
	forgetsLocks    flaw = "restart loses locks"
	waitEndsHold    flaw = "wait capped by the TTL: holds"

	counterPerLock flaw = "counter deleted at release"
	counterPlain   flaw = "counter goes back on restart"
	tokenSeconds   flaw = "token is the second"
	tokenNanos     flaw = "token above 2^53"
	tokenRandom    flaw = "token is random"
	tokenEarly     flaw = "token before the lock is won"
	floorIgnored   flaw = "floor ignored"

	lifo            flaw = "last come, first served"
	holderWaits     flaw = "holder counted as waiter"
	failedTryWrites flaw = "failed tries write rows"
	waitLeavesRow   flaw = "a wait leaves its queue"
	rowPerName      flaw = "a row per name for ever"

	closesGiven  flaw = "given client closed"
	changesGiven flaw = "given client changed"

	// These show over a wire and between processes.
	tokenConstant flaw = "token is constant"
	trustsAhead   flaw = "deadline ahead of the request"
	deadStalls    flaw = "dead waiter stalls the queue"
	nextTakesOver flaw = "dead waiter frees the lock"
	pushOnly      flaw = "waits for the push only"
)
