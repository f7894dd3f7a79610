package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
)

// shared is group S: locks that several may hold at once.
var shared = []Rule{
	{
		Name: "S1", What: "readers hold together, and a writer alone",
		Why:   "A reader beside a writer reads what is half written.",
		Trait: withReaders, Check: readersTogether,
	},
	{
		Name: "S2", What: "no more than n permits are out at once",
		Why:   "One permit more is one connection, one job or one seat more than there is.",
		Trait: withPermits, Check: permitsBound,
	},
	{
		Name: "S3", What: "a writer that waits keeps later readers out",
		Why:   "Where readers keep coming a writer would wait for ever.",
		Trait: withReaders, Needs: Needs{Told: true, Waiters: true}, Check: writerFirst,
	},
	{
		Name: "S4", What: "a release lets in all waiters at the head of the queue that may hold together",
		Why:   "Readers that are let in one after the other wait for each other as writers do.",
		Trait: withReaders, Needs: Needs{Told: true}, Check: allLetIn,
	},
	{
		Name: "S5", What: "a writer that gives up lets the readers behind it in",
		Why:   "Nothing is released then, so nothing else would wake them.",
		Trait: withReaders, Needs: Needs{Told: true}, Check: writerGivesUp,
	},
	{
		Name: "S6", What: "a dead writer that waits keeps readers out for DeadWaiter at most",
		Why:   "It may have the lock only after all readers, so its own turn may never come.",
		Trait: withReaders, Needs: Needs{Process: true, Told: true}, Check: deadWriter,
	},
	{
		Name: "S7", What: "a dead holder's permit is free after its time, and the others go on",
		Why:   "A permit that dies with each crash is none in the end.",
		Trait: withPermits, Check: deadPermit,
	},
	{
		Name: "S8", What: "each hold has its own expiry",
		Why:   "A short lease beside a long one must not end it, nor live as long.",
		Trait: withReaders, Check: ownExpiry,
	},
	{
		Name: "S9", What: "where holders asked for different numbers, the least number binds all",
		Why:   "A deploy that changes the number has both at work for a while.",
		Trait: withPermits, Check: leastBinds,
	},
	{
		Name: "S10", What: "slots are 0 to n-1, no two live ones are alike, and tokens rise in each",
		Why:   "Work that is divided by slot is guarded by slot.",
		Trait: withPermits, Check: slots,
	},
	{
		Name: "S11", What: "a request that is sent again finds its own permit",
		Why:   "A lost reply would take two permits, and nobody would give the second back.",
		Trait: withPermits, Check: permitAgain,
	},
	{
		Name: "S12", What: "an abandoned request takes no permit, now or later",
		Why:   "A copy that is late would take a permit that nobody gives back.",
		Trait: withPermits, Check: permitAbandoned,
	},
	{
		Name: "S13", What: "a release that is sent twice frees one permit",
		Why:   "A count that is lowered twice lets one too many in.",
		Trait: withPermits, Check: releasedTwice,
	},
	{
		Name: "S14", What: "the writer's side is the Mutex of the name, and modes exclude each other",
		Why:   "A program that still uses the Mutex must be kept out, and keep out.",
		Trait: withReaders, Check: sameMutex,
	},
	{
		Name: "S15", What: "Break ends every hold and BreakHold one, and none comes back",
		Why:   "An operator that frees a lock means all of it, and one of several means no other.",
		Trait: withReaders, Check: breakAll,
	},
	{
		Name: "S16", What: "a waiter that was woken and has not asked yet counts",
		Why:   "Until it asks, nobody else may take the permit that is kept for it.",
		Trait: withPermits, Needs: Needs{Link: true, Told: true, Waiters: true}, Check: wokenCounts,
	},
	{
		Name: "S17", What: "readers of one process are one at the store, and keep no writer elsewhere out",
		Why:   "A request for each goroutine is a storm, and readers that join for ever starve writers.",
		Trait: withReaders, Needs: Needs{Told: true}, Check: localReaders,
	},
	{
		Name: "S18", What: "a ctx that carries a lease gets ErrDeadlock, or by re-entry another lease on its hold",
		Why:   "A goroutine that waits for itself waits for ever, and two upgrades wait for each other.",
		Trait: withReaders, Check: sharedReentry,
	},
	{
		Name: "S19", What: "Inspect tells how a name is held and by how many, and nothing is left",
		Why:   "An operator that looks for the holder must see that there are several.",
		Trait: withReaders, Needs: Needs{Store: true}, Check: inspectShared,
	},
	{
		Name: "S20", What: "LockAll takes all or none, in one order, and the loss of one ends all",
		Why:   "Two programs that take two locks in different orders wait for each other.",
		Check: severalNames,
	},
	{
		Name: "S21", What: "Wanted is closed soon after somebody waits, and not for a try",
		Why:   "A holder that lets go for nobody works for nothing, and one that is not told keeps all out.",
		Needs: Needs{Waiters: true}, Check: wanted,
	},
	{
		Name: "E11", What: "readers that hold at once have one token, between those of the writers before and after",
		Why:   "A token for each reader would shut older ones out at a guard; an old one lets an overtaken writer in.",
		Trait: withReadersAndTokens, Check: eras,
	},
	{
		Name: "E12", What: "a guard refuses no reader that holds, and refuses holders that others have overtaken",
		Why:   "The guards know one number: readers must pass with it, and old writers must not.",
		Trait: withReadersAndTokens, Check: readersAtGuard,
	},
}

func withReaders(t backend.Traits) string {
	if !t.Readers {
		return "Traits.Readers is false"
	}
	return ""
}

func withReadersAndTokens(t backend.Traits) string { return cmp.Or(withReaders(t), noTokens(t)) }

func withPermits(t backend.Traits) string {
	if t.Permits < 3 {
		return fmt.Sprintf("Traits.Permits is %d", t.Permits)
	}
	return ""
}

// several opens n clients.
func (e *Env) several(ctx context.Context, n int) []*fencelock.Locker {
	var all []*fencelock.Locker
	for range n {
		all = append(all, must(e.Open(ctx)))
	}
	return all
}

// soon is within what time a waiter has a lock that came free.
func (e *Env) soon() time.Duration { return 2*time.Second + e.Slack() }

func readersTogether(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	name := e.Name()
	first := must(take(ctx, ls[0].RWMutex(name).TryRLock, "the first reader"))
	second := must(take(ctx, ls[1].RWMutex(name).TryRLock, "the second reader"))
	check(refused(ctx, ls[2].RWMutex(name).TryLock, "a writer beside two readers"))
	check(unlock(ctx, first, "the first reader"))
	check(refused(ctx, ls[2].RWMutex(name).TryLock, "a writer beside one reader"))
	check(unlock(ctx, second, "the second reader"))
	writer := must(take(ctx, ls[2].RWMutex(name).TryLock, "a writer, alone"))
	check(refused(ctx, ls[0].RWMutex(name).TryRLock, "a reader beside a writer"))
	check(refused(ctx, ls[1].RWMutex(name).TryLock, "a writer beside a writer"))
	check(unlock(ctx, writer, "the writer"))
	return inTurns(ctx, e, ls, name)
}

// throng has n goroutines take locks and unlock them again, many times each, and calls inside in between.
func throng(
	ctx context.Context, e *Env, n int, lock func(i int) locks, inside func(i int, le *fencelock.Lease) error,
) error {
	return together(n, func(i int) error {
		for range e.count(5, 30, 300) {
			le := must(lock(i)(ctx))
			check(errors.Join(inside(i, le), le.Unlock(ctx)))
		}
		return nil
	})
}

// inTurns has readers and writers of several processes look at each other.
func inTurns(ctx context.Context, e *Env, ls []*fencelock.Locker, name string) error {
	var readers, writers, most atomic.Int64
	lock := func(i int) locks {
		m := ls[i%len(ls)].RWMutex(name)
		if i%4 == 0 {
			return m.Lock
		}
		return m.RLock
	}
	check(throng(ctx, e, 4*len(ls), lock, func(i int, le *fencelock.Lease) error {
		mine, alone := &readers, false
		if i%4 == 0 {
			mine, alone = &writers, true
		}
		defer mine.Add(-1)
		n := mine.Add(1)
		if writers.Load() > 0 && !alone || alone && (n > 1 || readers.Load() > 0) {
			return fmt.Errorf("a %v saw %d readers and %d writers", le.Mode(), readers.Load(), writers.Load())
		}
		if !alone {
			most.Store(max(most.Load(), n))
		}
		return sleep(ctx, time.Millisecond)
	}))
	e.Notef("up to %d readers at once", most.Load())
	return nil
}

func writerFirst(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 4)
	name := e.Name()
	reader := must(take(ctx, ls[0].RWMutex(name).TryRLock, "a reader"))
	writer := calling(ctx, ls[1].RWMutex(name).Lock)
	check(waiting(ctx, ls[3], name, 1))
	check(refused(ctx, ls[2].RWMutex(name).TryRLock, "a reader's try while a writer waits"))
	late := calling(ctx, ls[2].RWMutex(name).RLock)
	check(waiting(ctx, ls[3], name, 2))
	select {
	case <-late:
		return errors.New("a reader that came after a writer that waits was granted before it")
	case <-time.After(100 * time.Millisecond):
	}
	check(unlock(ctx, reader, "the reader"))
	w := must(granted(ctx, writer, e.soon(), "the writer"))
	check(refused(ctx, ls[0].RWMutex(name).TryRLock, "a reader beside the writer"))
	check(unlock(ctx, w.lease, "the writer"))
	return turn(ctx, late, e.soon(), "the late reader")
}

func ownExpiry(ctx context.Context, e *Env) error {
	d := e.caller(ctx)
	l := must(e.Open(ctx))
	name := e.Name()
	long, short := e.Request(name, false), e.Request(name, false)
	long.Mode, long.Auto, long.TTL = backend.Reader, false, 3*e.TTL()
	short.Mode, short.Auto = backend.Reader, false
	began := time.Now()
	must(acquire(ctx, d, long, "a reader with three times the TTL"))
	must(acquire(ctx, d, short, "a reader with the TTL"))
	check(sleep(ctx, e.TTL()+e.traits.Resolution+50*time.Millisecond))
	info := must(l.Inspect(ctx, name))
	if info.Holders != 1 && time.Since(began) < 2*e.TTL() {
		return fmt.Errorf("after the time of one of two readers: got %+v, want one holder", info)
	}
	got := must(granted(ctx, calling(ctx, l.RWMutex(name).Lock), 3*e.TTL()+time.Second+e.Slack(), "a writer"))
	if took := got.at.Sub(began); took < 3*e.TTL()-e.traits.Resolution-time.Millisecond {
		return fmt.Errorf("a writer was granted %v after the reader with a TTL of %v", took, 3*e.TTL())
	}
	return unlock(ctx, got.lease, "the writer")
}

func sameMutex(ctx context.Context, e *Env) error {
	a, b := must2(e.Two(ctx))
	name := e.Name()
	le := must(try(ctx, a, name, "a free lock"))
	check(refused(ctx, b.RWMutex(name).TryLock, "a writer beside a Mutex"))
	check(refused(ctx, b.RWMutex(name).TryRLock, "a reader beside a Mutex"))
	if e.traits.Permits > 0 {
		check(refused(ctx, b.Semaphore(name, 2).TryAcquire, "a permit beside a Mutex"))
	}
	check(unlock(ctx, le, "the Mutex"))
	le = must(take(ctx, a.RWMutex(name).TryRLock, "a reader"))
	check(held(ctx, b, name, "a reader holds"))
	if e.traits.Permits == 0 {
		return unlock(ctx, le, "the reader")
	}
	check(refused(ctx, b.Semaphore(name, 2).TryAcquire, "a permit beside a reader"))
	check(unlock(ctx, le, "the reader"))
	le = must(take(ctx, a.Semaphore(name, 2).TryAcquire, "a permit of two"))
	check(held(ctx, b, name, "a permit is out"))
	check(refused(ctx, b.RWMutex(name).TryRLock, "a reader beside a permit"))
	return unlock(ctx, le, "the permit")
}

func breakAll(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	name := e.Name()
	var old []*fencelock.Lease
	for i, l := range ls[:2] {
		old = append(old, must(take(ctx, l.RWMutex(name).TryRLock, fmt.Sprintf("reader %d", i))))
	}
	check(want(ls[2].Break(ctx, name), nil, "Break"))
	writer := must(take(ctx, ls[2].RWMutex(name).TryLock, "a writer after Break"))
	check(unlock(ctx, writer, "the writer"))
	next := must(take(ctx, ls[2].RWMutex(name).TryRLock, "a reader after that"))
	for i, le := range old {
		check(e.learns(ctx, le))
		check(want(le.Err(), fencelock.ErrLost, fmt.Sprintf("reader %d after Break", i)))
	}
	info, err := ls[2].Inspect(ctx, name)
	if err != nil || info.Holders != 1 {
		return fmt.Errorf("after Break and a new reader: got %+v and %v, want one holder", info, err)
	}
	check(breakOne(ctx, e, ls, next, func(ctx context.Context) (*fencelock.Lease, error) {
		return ls[0].RWMutex(name, fencelock.WithOwner("other")).TryRLock(ctx)
	}))
	if e.traits.Permits >= 3 {
		name := e.Name()
		permit := must(take(ctx, ls[2].Semaphore(name, 3).TryAcquire, "a permit"))
		check(breakOne(ctx, e, ls, permit, func(ctx context.Context) (*fencelock.Lease, error) {
			return ls[0].Semaphore(name, 3, fencelock.WithOwner("other")).TryAcquire(ctx)
		}))
		check(unlock(ctx, permit, "the permit"))
	}
	check(e.above(writer.Token(), old[0].Token(), "of the writer"))
	check(e.above(next.Token(), writer.Token(), "of the reader after it"))
	return unlock(ctx, next, "the new reader")
}

// breakOne: BreakHold ends the hold that it names, and next, beside it, goes on.
func breakOne(ctx context.Context, e *Env, ls []*fencelock.Locker, next *fencelock.Lease, lock locks) error {
	name, who := next.Name(), fmt.Sprintf("%v of two", next.Mode())
	other := must(take(ctx, lock, who))
	info := must(ls[1].Inspect(ctx, name))
	if info.Holds == nil {
		e.Notef("the store does not tell one hold from another")
		check(want(ls[1].BreakHold(ctx, name, "0123456789ab"), fencelock.ErrUnsupported, "BreakHold"))
		return unlock(ctx, other, who)
	}
	i := slices.IndexFunc(info.Holds, func(h fencelock.Held) bool { return h.Owner == "other" })
	if i < 0 || len(info.Holds) != info.Holders || info.Holds[i].Token != other.Token() ||
		info.Holds[i].Slot != other.Slot() || info.Holds[i].ExpiresIn <= 0 && info.ExpiresIn > 0 {
		return fmt.Errorf("%s: got %+v, want both holds", who, info)
	}
	for range 2 { // it is free already then
		check(want(ls[1].BreakHold(ctx, name, info.Holds[i].ID), nil, "BreakHold"))
	}
	check(e.learns(ctx, other))
	check(want(other.Err(), fencelock.ErrLost, who+" after BreakHold"))
	check(want(other.Unlock(ctx), fencelock.ErrLost, "Unlock after BreakHold"))
	check(next.Renew(ctx))
	check(refused(ctx, ls[1].RWMutex(name).TryLock, "a writer beside the one that is left"))
	return want(ls[1].BreakHold(ctx, name, "x"), fencelock.ErrInvalid, "BreakHold of a bad id")
}

func inspectShared(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	name := e.Name()
	for i := range 2 {
		le := must(take(ctx, ls[i].RWMutex(name).TryRLock, "a reader"))
		info := must(ls[2].Inspect(ctx, name))
		if !info.Held || info.Mode != fencelock.Reader || info.Holders != i+1 || info.Token != le.Token() {
			return fmt.Errorf("with %d readers: got %+v, want them and token %d", i+1, info, le.Token())
		}
		defer func() { _ = le.Unlock(ctx) }()
	}
	writer, cancel := context.WithCancel(ctx)
	defer cancel()
	waits := calling(writer, ls[2].RWMutex(name).Lock)
	check(waiting(ctx, ls[0], name, 1))
	cancel()
	<-waits
	check(until(ctx, e.soon(), "the writer's place is gone", func() (bool, error) {
		info, err := ls[0].Inspect(ctx, name)
		return err == nil && info.Waiters <= 0, err
	}))
	if e.traits.Permits > 0 {
		other := e.Name()
		le := must(take(ctx, ls[0].Semaphore(other, 2).TryAcquire, "a permit"))
		info, err := ls[1].Inspect(ctx, other)
		if err != nil || info.Mode != fencelock.Permit || info.Holders != 1 {
			return fmt.Errorf("with a permit: got %+v and %v", info, err)
		}
		check(unlock(ctx, le, "the permit"))
	}
	for _, l := range ls {
		check(want(l.Close(), nil, "Close"))
	}
	return e.emptyWithin(ctx, e.TTL()+2*time.Second+e.traits.Resolution)
}

func eras(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	name := e.Name()
	last := fencelock.Token(0)
	for round := range 3 {
		writer := must(take(ctx, ls[2].RWMutex(name).TryLock, "a writer"))
		check(e.above(writer.Token(), last, fmt.Sprintf("of the writer of round %d", round)))
		check(unlock(ctx, writer, "the writer"))
		first := must(take(ctx, ls[0].RWMutex(name).TryRLock, "a reader"))
		second := must(take(ctx, ls[1].RWMutex(name).TryRLock, "a second one"))
		check(e.above(first.Token(), writer.Token(), fmt.Sprintf("of a reader of round %d", round)))
		check(unlock(ctx, first, "the first reader"))
		third := must(take(ctx, ls[0].RWMutex(name).TryRLock, "a third one, beside the second"))
		if first.Token() != second.Token() || first.Token() != third.Token() {
			return fmt.Errorf("round %d: readers that overlap have the tokens %d, %d and %d",
				round, first.Token(), second.Token(), third.Token())
		}
		last = third.Token()
		check(errors.Join(unlock(ctx, second, "the second"), unlock(ctx, third, "the third")))
	}
	return nil
}

// wanted is rule S21.
func wanted(ctx context.Context, e *Env) error {
	ls := e.several(ctx, 3)
	check(wantedByWaiter(ctx, e, ls, ls[0].Mutex(e.Name()).Lock))
	if e.traits.Readers {
		check(wantedByWaiter(ctx, e, ls, ls[0].RWMutex(e.Name()).RLock))
	}
	return wantedHere(ctx, e, ls[0])
}

// wantedByWaiter: a holder is told of a waiter elsewhere, and of no try.
func wantedByWaiter(ctx context.Context, e *Env, ls []*fencelock.Locker, lock locks) error {
	le := must(take(ctx, lock, "a free lock"))
	what := fmt.Sprintf("Wanted of %v", le.Mode())
	wanted := le.Wanted()
	check(held(ctx, ls[1], le.Name(), "a try"))
	select {
	case <-wanted:
		return errors.New(what + ": it is closed, and nobody waits")
	case <-time.After(2200 * time.Millisecond): // two looks at the store
	}
	waits, cancel := context.WithCancel(ctx)
	defer cancel()
	waiter := locking(waits, ls[2], le.Name())
	check(waiting(ctx, ls[1], le.Name(), 1))
	began := time.Now()
	select {
	case <-wanted:
		e.Notef("%s: closed %v after the store knew of a waiter", what, time.Since(began).Round(time.Millisecond))
	case <-time.After(e.soon()):
		return fmt.Errorf("%s: not closed within %v, and somebody waits", what, e.soon())
	}
	cancel()
	<-waiter
	select {
	case <-le.Wanted():
	default:
		return errors.New(what + ": it does not stay closed")
	}
	return unlock(ctx, le, "the holder")
}

// wantedHere: the holder is told of a waiter in its own process without a look at the store.
func wantedHere(ctx context.Context, e *Env, l *fencelock.Locker) error {
	le := must(try(ctx, l, e.Name(), "a free lock"))
	wanted := le.Wanted()
	waiter := locking(ctx, l, le.Name())
	select {
	case <-wanted:
	case <-time.After(e.soon()):
		return errors.New("the channel of Wanted is open, and somebody of this process waits")
	}
	check(unlock(ctx, le, "the holder"))
	return turn(ctx, waiter, e.soon(), "the waiter")
}
