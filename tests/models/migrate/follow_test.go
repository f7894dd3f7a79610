package migrate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	code "github.com/fencelock/fencelock/backend/migrate"
)

// match chooses actions of the model by their words.
type match func(action string) bool

func says(words string) match { return func(a string) bool { return a == words } }

func clientSays(p *program, words string) match {
	who := fmt.Sprintf("%v (%s) ", p, phases[p.phase])
	return func(a string) bool { return strings.HasPrefix(a, who+words) }
}

func deadline(p *program, k int) match {
	return says(fmt.Sprintf("the deadline of %v (%s) in %s passes", p, phases[p.phase], side(k)))
}

func switchSays(j int, words string) match {
	words = [...]string{"", "(2) "}[j] + words
	return func(a string) bool {
		return strings.HasPrefix(a, "the switch back "+words) || strings.HasPrefix(a, "the switch there "+words)
	}
}

func either(all ...match) match {
	return func(a string) bool { return slices.ContainsFunc(all, func(m match) bool { return m(a) }) }
}

// after returns the states after the actions that match. What breaks a promise is none of them.
func (tr *trace) after(s state, ok match) (next []state) {
	for _, st := range tr.m.Steps(&s) {
		if st.Broken == "" && ok(st.Action) {
			next = append(next, st.Next)
		}
	}
	return next
}

// orStay is after, or s where no action matches.
func (tr *trace) orStay(s state, ok match) []state {
	if next := tr.after(s, ok); len(next) > 0 {
		return next
	}
	return []state{s}
}

func (tr *trace) each(next func(state) []state) {
	all := map[state]bool{}
	for s := range tr.states {
		for _, n := range next(s) {
			all[n] = true
		}
	}
	tr.states = all
}

func (tr *trace) must(ok match) { tr.each(func(s state) []state { return tr.after(s, ok) }) }
func (tr *trace) can(ok match)  { tr.each(func(s state) []state { return tr.orStay(s, ok) }) }
func (tr *trace) may(ok match)  { tr.each(func(s state) []state { return append(tr.after(s, ok), s) }) }

func (tr *trace) mustNot(ok match) {
	tr.each(func(s state) []state {
		if len(tr.after(s, ok)) > 0 {
			return nil
		}
		return []state{s}
	})
}

// quit ends what a client has begun. The stores keep it yet.
func (tr *trace) quit(p *program) {
	tr.can(says(fmt.Sprintf("%v (%s) crashes", p, phases[p.phase])))
	p.nonce, p.asked = "", [2]time.Time{}
}

// giveUp is quit for an acquisition that would have become a lease if no deadline had passed.
func (tr *trace) giveUp(p *program) {
	tr.deadlines(p)
	c := p.doing
	late := c.what == "tries" && time.Since(c.began) > 4900*time.Millisecond ||
		c.done && errors.Is(c.err, backend.ErrUnavailable) // what it waited for last had no answer for 5 s
	over := c.done && errors.Is(c.err, backend.ErrInvalid) && slices.Contains(tr.seen.gate[:], void)
	if !c.cancelled && !late && !over {
		tr.mustNot(clientSays(p, "is GRANTED"))
	}
	tr.quit(p)
}

// deadlines lets those of a client pass that have.
func (tr *trace) deadlines(p *program) {
	for k, asked := range p.asked {
		if !asked.IsZero() && time.Since(asked) >= lease-margin {
			tr.can(deadline(p, k))
		}
	}
}

// follow makes the model do what a call has done.
func (tr *trace) follow(o *op) {
	p, k := o.by, o.store
	switch o.what {
	case "asks":
		if p.nonce != o.nonce {
			tr.giveUp(p) // what it had begun before, if anything
			p.nonce, p.token = o.nonce, [2]fencelock.Token{}
		}
		takes := clientSays(p, "takes "+side(k))
		switch {
		case o.err == nil:
			if p.token[k] != o.token { // else it has found its grant again
				tr.must(takes)
			}
			p.token[k], p.asked[k], tr.whose[k][o.token] = o.token, o.made, o
		case errors.Is(o.err, backend.ErrLocked) && !tr.kept[k]:
			tr.mustNot(takes)
		}
	case "renews in":
		if o.err == nil && o.nonce == p.nonce && p.lease == nil {
			p.asked[k] = o.sent
		}
	case "leaves":
		switch ours := o.nonce == p.nonce; {
		case ours && p.lease != nil:
			whole := says(fmt.Sprintf("%v (%s) releases", p, phases[p.phase]))
			tr.must(either(whole, clientSays(p, "releases "+side(k))))
			return
		case ours:
			tr.giveUp(p)
		}
		tr.may(says(side(k) + " expires a lock"))
	case "raises its":
		tr.followRaise(o)
	case "sets the gate of":
		tr.followSet(o)
	case "reads the gate of":
		if p.read[k] = o.gate.Epoch; p.j >= 0 {
			tr.followRead(p, k)
		}
	default:
		if p.j < 0 {
			return
		}
		p.source = o.token
		if did := switchSays(p.j, o.what+" "+side(k)); o.err == nil {
			tr.must(did)
		} else {
			tr.mustNot(did)
		}
	}
}

func (tr *trace) followRaise(o *op) {
	raise := clientSays(o.by, "raises "+side(o.store))
	switch {
	case o == tr.late && o.err == nil:
		tr.late = nil
		tr.sum["late raise"]++
		tr.must(says("the raise of the dead one arrives"))
	case o == tr.late:
	case o.err == nil:
		tr.must(raise)
	default:
		tr.mustNot(raise)
	}
}

// followRead is a look of switch p at a gate. A start looks once before the switch, which may not be needed; an
// operator who opens the new store looks for lost gates first, until there are none.
func (tr *trace) followRead(p *program, k int) {
	first := k == p.goal && !p.looked
	p.looked = p.looked || first
	begins := switchSays(p.j, "begins: it reads the gate of "+side(k))
	if tr.m.Ends && p.slot < 0 {
		begins = switchSays(p.j, "begins by hand: it reads the gate of "+side(k))
	}
	tr.each(func(s state) []state {
		w := &s.switchers[p.j]
		opens := int(w.opens) == k
		switch {
		case w.at == 0 && k == new && k == p.goal && p.slot < 0:
			return append(tr.after(s, begins), s)
		case w.at == 0 && k == p.goal && !first:
			return tr.orStay(s, begins)
		case w.at == 0 && k != p.goal && p.doing.stopped(): // it had opened its store when it was stopped
			return append(tr.after(s, begins), s)
		case w.at == chosen && !opens:
			over := switchSays(p.j, "finds that the migration is over")
			return tr.orStay(s, either(over, switchSays(p.j, "reads the gate of "+side(k))))
		// It had begun with a look before, or begins with this one: also where it was not a switch's look at both
		// gates, but a preparation's, and where the store that it drained is open.
		case (w.at == chosen || w.at == closing || w.at == opening) && k == p.goal:
			next := []state{s}
			for _, s := range tr.after(s, switchSays(p.j, "dies")) {
				next = append(next, tr.orStay(s, begins)...)
			}
			return next
		case w.at >= draining && !opens && p.doing.stopped():
			return append(tr.after(s, switchSays(p.j, "fails, and goes back")), s)
		}
		return []state{s}
	})
}

// followSet is a change of a gate, or its refusal.
func (tr *trace) followSet(o *op) {
	p, k := o.by, side(o.store)
	does := "closes "
	if o.gate.State == backend.GateOpen {
		does = "OPENS "
	}
	mends := func(a string) bool { return strings.HasPrefix(a, "somebody finds no gate in "+k) }
	switch {
	case o.err != nil && p.j >= 0:
		tr.sum["gate moved"]++
		tr.each(func(s state) []state {
			next := tr.after(s, switchSays(p.j, "finds that somebody has changed the gate of "+k))
			at := s.switchers[p.j].at
			if at != closing && at != opening || len(next) > 0 && (at == opening || p.doing.stopped()) {
				next = append(next, s) // it was no part of a switch, or the switch is undone if it does not begin again
			}
			return next
		})
	case o.err != nil:
	case p.does("finishes", "cancels", "prepares"):
		tr.sum["ended"]++
		tr.must(either(mends, func(a string) bool {
			return strings.HasPrefix(a, "an operator ") && strings.HasSuffix(a, k)
		}))
	case p.j >= 0:
		if o.gate.State == backend.GateBoth {
			p.wrote = o.gate.Epoch
		} else if tr.sum["opened"]++; p.doing.stopped() {
			tr.sum["undone"]++
		}
		tr.must(either(mends, switchSays(p.j, does+k)))
	default:
		tr.must(mends)
	}
}

// sight is what can be seen of the stores, in the model's words.
type sight struct {
	holder, gate [2]uint8
	both, sealed [2]bool
}

// look sees what the stores have.
func (tr *trace) look() {
	pair, err := code.PairOf("m", moving, tr.stores[old], tr.stores[new])
	st, wrong := pair.Status(tr.Context())
	if err = errors.Join(err, wrong); err != nil {
		tr.Fatal(err)
	}
	tr.seen = sight{}
	for k, d := range []code.Side{st.From, st.To} {
		switch w := &tr.seen; {
		case d.Cancelled:
			w.gate[k] = void
		case d.Gate.State == backend.GateOpen:
			w.gate[k] = open
		case d.Gate.Epoch != 0:
			w.gate[k] = shut
		}
		tr.seen.sealed[k], tr.epochs[k], tr.sources[k] = d.Finished, d.Gate.Epoch, d.Source
		for i := range tr.stores[k].Look(tr.Context(), backend.Range{Name: "x"}) {
			tr.kept[k] = i.Pending || i.Waiters > 0
			if !i.Held || i.Pending {
				continue
			}
			tr.seen.both[k], tr.seen.holder[k] = i.Both != "", ghost
			if o := tr.whose[k][i.Token]; o != nil && o.nonce == o.by.nonce {
				tr.seen.holder[k] = uint8(o.by.slot + 1)
			}
		}
	}
	tr.did = append(tr.did, fmt.Sprintf("    %+v, epochs %v, sources %v", tr.seen, tr.epochs, tr.sources))
}

// is reports whether the model's state is what can be seen.
func (tr *trace) is(s *state) bool {
	var w sight
	tokens, epochs := ranks{{}, {int64(s.top), tr.top}}, [2]ranks{{{}}, {{}}}
	for k, h := range s.stores {
		w.holder[k], w.gate[k], w.both[k], w.sealed[k] = h.holder, h.gate, h.both, h.sealed
		tokens = append(tokens, [2]int64{int64(h.source), tr.sources[k]})
		epochs[k] = append(epochs[k], [2]int64{int64(h.epoch), tr.epochs[k]})
	}
	if tr.late != nil {
		tokens.add(s.late, tr.late.token)
	}
	for i, p := range tr.programs[:tr.m.Clients] {
		c := &s.clients[i]
		holds, asks := p.lease != nil && !p.dead, p.does("tries", "locks") && !p.dead
		if c.at == held && !holds || c.at != held && holds && !p.does("unlocks") || c.at != idle && !holds && !asks {
			return false
		}
		tokens.add(c.t1, p.token[old])
		tokens.add(c.t2, p.token[new])
	}
	for j, p := range tr.switches {
		sw := &s.switchers[j]
		if sw.at == 0 {
			continue
		}
		tokens.add(sw.value, p.source)
		epochs[sw.opens].add(sw.was, p.read[sw.opens])
		epochs[1-sw.opens].add(sw.wrote, p.wrote)
		if sw.at == closing {
			epochs[1-sw.opens] = append(epochs[1-sw.opens], [2]int64{int64(sw.epoch), p.read[1-sw.opens]})
		}
	}
	return w == tr.seen && tokens.alike() && epochs[old].alike() && epochs[new].alike()
}

// ranks are numbers of the model, and those of the code for which they stand.
type ranks [][2]int64

// add adds one that the model has in use.
func (r *ranks) add(model uint8, code int64) {
	if model != 0 {
		*r = append(*r, [2]int64{int64(model), code})
	}
}

// alike reports whether the model's numbers are in the order of the code's.
func (r ranks) alike() bool {
	for i, a := range r {
		for _, b := range r[:i] {
			if cmp.Compare(a[0], b[0]) != cmp.Compare(a[1], b[1]) {
				return false
			}
		}
	}
	return true
}
