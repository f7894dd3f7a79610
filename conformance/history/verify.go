package history

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/fencelock/fencelock/backend"
)

// Options are the options of a check.
type Options struct {
	// Plain leaves out whether the lock excludes, for a store that does not promise it under this fault: tokens and the
	// resource are still judged.
	Plain bool
	// Brittle is for a store whose leases can end before their deadline, with the client's
	// connection or with the memory of a server: then an Unlock may be told of the loss as early.
	Brittle bool
	// Timeout bounds the search for each name. The default is 30 s.
	Timeout time.Duration
	// Save is the folder for the events of a broken lock, and porcupine's view of them as a page. Empty: none is saved.
	Save string
}

// ErrUnknown is matched by the error of a history whose search did not end in time: it has not passed.
var ErrUnknown = errors.New("the search did not end")

// ErrDisagree is matched by the error of a history of which the two judges say different things: one of them is wrong.
var ErrDisagree = errors.New("the judges disagree")

// Verify has two judges look at each lock (see [Judge]) and returns an error for each that finds none of the orders
// legal, or does not come to an end, and where they disagree. Call [Check] first: it names the culprits, and a history
// that breaks a promise and has many unclear calls takes very long here. A name should have a thousand calls at the
// most.
func Verify(events []Event, o Options) error {
	var errs []error
	for _, v := range Judge(events, o) {
		if err := v.Err(); err != nil {
			errs = append(errs, err, o.save(v.Name, events, v.info))
		}
	}
	return errors.Join(errs...)
}

// A Verdict is the judges' verdict on one lock.
type Verdict struct {
	Name  string
	Calls int // that were searched

	// Lease is nil if there is an order of the calls in which a fenced lock with leases ([Model]) would have answered
	// as it did: of acquisitions, renewals, releases, accesses to the resource, and looks at the store. It matches
	// [ErrUnknown] if the search did not end in time.
	Lease error
	// Mutex is nil if an order of the acquisitions and releases is one of Hazelcast's fenced mutex.
	Mutex error
	// Disagree is not nil if one of them accepts the calls that both look at, and the other refuses them. It matches
	// [ErrDisagree].
	Disagree error

	info porcupine.LinearizationInfo
}

// Err returns all that is wrong, joined.
func (v Verdict) Err() error { return errors.Join(v.Lease, v.Mutex, v.Disagree) }

// Judge judges each lock of a history twice: by a search with our model of a lease, and by Hazelcast's fenced mutex,
// and compares the two. The verdicts are sorted by name.
func Judge(events []Event, o Options) []Verdict {
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	events = exclusiveOnly(events)
	ops, others := operations(events, o), tenures(events, o)
	var all []Verdict
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		v := Verdict{Name: name, Calls: len(ops[name]), Mutex: obeys(name, others[name])}
		v.info, v.Lease = legal(name, ops[name], o)
		all = append(all, compare(name, v, ops[name], o))
	}
	return all
}

// compare sets whether the two verdicts fit each other.
func compare(name string, v Verdict, ops []porcupine.Operation, o Options) Verdict {
	switch {
	case (v.Lease == nil) == (v.Mutex == nil), errors.Is(v.Lease, ErrUnknown):
	case v.Lease == nil:
		v.Disagree = fmt.Errorf("%q: %w: only the fenced mutex refuses it", name, ErrDisagree)
	default: // perhaps for calls that the mutex does not look at
		if _, err := legal(name, lockOnly(ops), o); err != nil && !errors.Is(err, ErrUnknown) {
			v.Disagree = fmt.Errorf("%q: %w: only the fenced mutex accepts its acquisitions and releases",
				name, ErrDisagree)
		}
	}
	return v
}

// legal searches for a legal order of calls of one name.
func legal(name string, ops []porcupine.Operation, o Options) (porcupine.LinearizationInfo, error) {
	if o.Plain {
		others, err := inOrder(name, ops)
		if err != nil {
			_, info := porcupine.CheckOperationsVerbose(Model, ops, time.Second) // for the page
			return info, err
		}
		ops = others
	}
	result, info := porcupine.CheckOperationsVerbose(Model, ops, o.Timeout)
	switch result {
	case porcupine.Ok:
		return info, nil
	case porcupine.Unknown:
		return info, fmt.Errorf("%q: %w within %v, of %d calls", name, ErrUnknown, o.Timeout, len(ops))
	}
	return info, fmt.Errorf("%q: no order of its %d calls is legal", name, len(ops))
}

// lockOnly returns the calls that the fenced mutex looks at too. An Unlock that reported a loss is to it either none,
// or one that may have been done.
func lockOnly(ops []porcupine.Operation) []porcupine.Operation {
	deadline := map[backend.Token]Moment{}
	for _, p := range ops {
		if o := p.Input.(Op); o.Verb == Acquire || o.Verb == Renew {
			deadline[o.Token] = max(deadline[o.Token], o.Until)
		}
	}
	var kept []porcupine.Operation
	for _, p := range ops {
		o := p.Input.(Op)
		switch {
		case o.Verb == Access, o.Verb == Inspect,
			o.Verb == Release && o.Result == Refused && o.Returned < deadline[o.Token]:
			continue
		case o.Verb == Release && o.Result == Refused:
			o.Result = Unclear
			p.Input = o
		}
		kept = append(kept, p)
	}
	return kept
}

// inOrder checks that acquisitions can have happened in the order of their tokens, and returns the
// other calls. Where the lock need not exclude, the two have nothing to do with each other, and a
// search would try every subset of the acquisitions that overlap.
func inOrder(name string, ops []porcupine.Operation) (others []porcupine.Operation, err error) {
	var acquired []porcupine.Operation
	for _, o := range ops {
		if o.Input.(Op).Verb == Acquire {
			acquired = append(acquired, o)
		} else {
			others = append(others, o)
		}
	}
	token := func(o porcupine.Operation) backend.Token { return o.Input.(Op).Token }
	slices.SortFunc(acquired, func(a, b porcupine.Operation) int { return cmp.Compare(token(a), token(b)) })
	latest := 0 // of those before, the one that was called last
	for i := 1; i < len(acquired); i++ {
		if before, o := acquired[latest], acquired[i]; token(acquired[i-1]) == token(o) || o.Return < before.Call {
			return nil, fmt.Errorf("%q: token %d was granted before %d was asked for", name, token(o), token(before))
		}
		if acquired[i].Call > acquired[latest].Call {
			latest = i
		}
	}
	return others, nil
}

// save writes the history of a broken lock, for a person to look at.
func (o Options) save(name string, events []Event, info porcupine.LinearizationInfo) error {
	if o.Save == "" {
		return nil
	}
	path := filepath.Join(o.Save, strings.Map(func(r rune) rune {
		if strings.ContainsRune("/\\:*?\"<>| ", r) {
			return '-'
		}
		return r
	}, name))
	if err := os.MkdirAll(o.Save, 0o755); err != nil {
		return err
	}
	err := porcupine.VisualizePath(Model, info, path+".html")
	return errors.Join(err,
		Save(path+".jsonl",
			slices.DeleteFunc(slices.Clone(events), func(e Event) bool {
				return e.Name != name && e.Name != ""
			}), o))
}

// operations returns the calls of each name.
func operations(events []Event, opts Options) map[string][]porcupine.Operation {
	all := map[string][]porcupine.Operation{}
	clients := map[string]int{}
	add := func(process, name string, o Op) {
		if opts.Plain && (o.Verb == Renew || o.Verb == Release || o.Verb == Inspect) {
			return // nothing is judged by them
		}
		if _, ok := clients[process]; !ok {
			clients[process] = len(clients)
		}
		o.Exclusive = !opts.Plain
		all[name] = append(all[name], porcupine.Operation{
			ClientId: clients[process], Input: o, Call: int64(o.Called), Return: int64(o.Returned),
			Metadata: process + " " + strconv.FormatInt(o.Token, 10),
		})
	}
	known := map[lease]*calls{}
	order := []lease{}
	of := func(e Event) *calls {
		key := lease{e.Process, e.Name, e.Token}
		if known[key] == nil {
			known[key] = &calls{}
			order = append(order, key)
		}
		return known[key]
	}
	for _, e := range events {
		switch e.Kind {
		case Granted:
			if of(e).granted.Kind != "" { // one token twice
				add(e.Process, e.Name, Op{
					Verb: Acquire, Token: e.Token, Called: e.Called, Returned: e.At, Until: e.Until, Result: OK,
				})
				continue
			}
			of(e).granted = e
		case Ended:
			of(e).ended = e
		case Freed:
			of(e).freed = again(of(e).freed, e)
		case Wanted:
			of(e).wanted = e
		case Shown:
			of(e).shown = append(of(e).shown, e)
		case Left:
			if e.Token != 0 && !granted(events, e) {
				add(e.Process,
					e.Name, Op{
						Verb: Acquire, Token: e.Token, Called: asked(events, e), Returned: e.At,
						Until: forever, Result: OK,
					})
			}
			add("store", e.Name, Op{Verb: Inspect, Token: e.Token, Called: e.Called, Returned: e.At, Result: OK})
		}
	}
	for _, key := range order {
		for _, o := range known[key].ops(key.token, opts.Brittle) {
			add(key.process, key.name, o)
		}
	}
	return all
}

// again makes one call of two of a lease's Unlock. A later one changes nothing that an earlier one settled, and
// where the earlier one has no known outcome, it may be the one that was done: then a loss that the later one reports
// may be none.
func again(a, b Event) Event {
	if a.Kind == "" {
		return b
	}
	if b.Called < a.Called {
		a, b = b, a
	}
	if a.Result != Unclear {
		return a
	}
	if b.Called = a.Called; b.Result == Refused {
		b.Result = Unclear
	}
	return b
}

// calls is the calls with one lease, by the events.
type calls struct {
	granted, ended, freed, wanted Event
	shown                         []Event
}

// ops returns the calls with the lease. Those that the history does not tell of are unclear if they
// could have been made.
func (c *calls) ops(t backend.Token, brittle bool) []Op {
	var ops []Op
	if c.granted.Kind == "" {
		return nil
	}
	ops = append(ops, Op{
		Verb: Acquire, Token: t, Called: c.granted.Called, Returned: c.granted.At,
		Until: c.granted.Until, Result: OK,
	})
	if c.ended.Until > c.granted.Until { // it was renewed meanwhile
		ops = append(ops, Op{
			Verb: Renew, Token: t, Called: c.granted.At, Returned: max(c.ended.At, c.granted.At),
			Until: c.ended.Until, Result: OK,
		})
	}
	for _, e := range c.shown {
		ops = append(ops, Op{Verb: Access, Token: t, Called: e.Called, Returned: e.At, Result: e.Result})
	}
	// then the next one may have come
	if n := len(c.shown); c.wanted.Kind != "" && (n == 0 || n == 1 && c.shown[0].Result == OK) {
		ops = append(ops, Op{Verb: Access, Token: t, Called: c.wanted.At, Returned: forever, Result: Unclear})
	}
	release := Op{Verb: Release, Token: t, Called: c.freed.Called, Returned: c.freed.At, Result: c.freed.Result}
	switch {
	case c.freed.Kind == "" && c.ended.Kind == "": // it died before it came to that
		if !brittle {
			return ops
		}
		release = Op{Verb: Release, Token: t, Called: c.granted.At, Returned: forever, Result: Unclear}
	case c.freed.Kind == "":
		release = Op{Verb: Release, Token: t, Called: c.ended.At, Returned: forever, Result: Unclear}
	case release.Result == Unclear:
		release.Returned = forever
	case release.Result == Refused && brittle:
		release.Called, release.Result = c.granted.At, Unclear // it ended at some time before
	}
	return append(ops, release)
}

// granted reports whether the program that the store names was told that it has the lock.
func granted(events []Event, left Event) bool {
	return slices.ContainsFunc(events, func(e Event) bool {
		return e.Kind == Granted && e.Name == left.Name && e.Token == left.Token
	})
}

// asked returns when the process first asked for a lock without learning whether it has it. An acquisition that
// nobody learnt of only takes from the others, so it is no call of the history unless the store shows that it was made.
func asked(events []Event, left Event) Moment {
	at := left.Called
	for _, e := range events {
		if e.Kind == Asked && e.Name == left.Name && program(e.Process) == program(left.Process) {
			at = min(at, e.Called)
		}
	}
	return at
}
