package redlock

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/internal/explore"
)

// is reports whether a node has what it has in the model. The model takes a lock that is over as
// freed at once, for then it only refuses others.
func (tr *trace) is(s *state, n int) bool {
	no, w := &s.nodes[n], tr.seen[n]
	for a, there := range w.tombs {
		if there && (s.attempts[a].phase != ended || no.cells[a].requests > 0) {
			return false
		}
	}
	number, bad := tr.small(w.number)
	counter, worse := tr.small(w.counter)
	base, worst := tr.small(w.base)
	return errors.Join(bad, worse, worst) == nil && counter == no.counter && base == no.base && (no.quar || !w.quar) &&
		(int(no.holder) == w.holder+1 && number == no.number ||
			no.holder == 0 && s.attempts[w.holder].phase == ended)
}

// small is a number as the model has it.
func (tr *trace) small(number int64) (uint8, error) {
	for i, origin := range slices.Backward(tr.origins) {
		if d := number - origin; d >= tick {
			return 0, fmt.Errorf("number %d is %d above %d", number, d, origin)
		} else if d >= 0 {
			return uint8(i*tick + int(d)), nil
		}
	}
	return 0, nil
}

func (tr *trace) number(text string) (uint8, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, err
	}
	return tr.small(n)
}

func named(actions ...string) func(*explore.Step[state]) bool {
	return func(st *explore.Step[state]) bool { return slices.Contains(actions, st.Action) }
}

// follow makes the states those after a step that is one, and those that stay as they are, but for
// what stays changes itself.
func (tr *trace) follow(stays func(*state) bool, is func(*explore.Step[state]) bool) {
	after := map[state]bool{}
	for s := range tr.states {
		for _, st := range tr.m.Steps(&s) {
			if is(&st) {
				st.Next.lost = 0 // without a bound
				after[st.Next] = true
			}
		}
		if stays != nil && stays(&s) {
			after[s] = true
		}
	}
	tr.states = after
}

// can reports whether a node of the model can do such a thing for an attempt.
func (tr *trace) can(s *state, n, a int, what string) bool {
	re := regexp.MustCompile(fmt.Sprintf("^node %d .*%s .*%s", n, what, name(a)))
	return slices.ContainsFunc(tr.m.Steps(s), func(st explore.Step[state]) bool { return re.MatchString(st.Action) })
}

// finish: an attempt is over, or may be. What may come late of it is what is under way.
func (tr *trace) finish(a int, may bool) {
	tr.follow(func(s *state) bool { return may || s.attempts[a].phase == ended }, func(st *explore.Step[state]) bool {
		for n := range nodes {
			if st.Next.nodes[n].cells[a].requests > 0 != (tr.flight[n][a] > 0) {
				return false
			}
		}
		return strings.HasPrefix(st.Action, name(a)+" is over")
	})
}

// skip: for a call of three operations or more a node draws a number for each vote before it looks
// which it gives. The model has no number that nobody gets.
func (tr *trace) skip(n, a int) {
	stamp, _ := tr.small(tr.stamps[a])
	for s := range maps.Clone(tr.states) {
		u := &s.nodes[n]
		u.counter = max(u.counter+1, stamp, u.base+1, tr.m.floor(a)+1)
		u.older.since = u.older.is
		tr.states[s] = true
	}
}

// reply follows what a node has said to an operation. What it refuses, the model must refuse too,
// but for what a lock that is over still refuses.
func (tr *trace) reply(n, a int, o op, reply any, heard bool) error {
	who := name(a)
	over := func(s *state, a int) bool { return a >= 0 && s.attempts[a].phase == ended }
	mine := func(s *state) bool { return int(s.nodes[n].holder) == a+1 }
	// late is what a node does for an attempt that is over and has not been released there. The model
	// has freed the lock. What is left is that the node counts the call and may raise the counter,
	// which makes its quarantines more and its numbers greater.
	late := func(s *state, number uint8) bool {
		if over(s, a) {
			u := &s.nodes[n]
			u.older.since, u.counter = u.older.is, max(u.counter, number)
			if mine(s) && number > 0 {
				u.number = number
			}
		}
		return over(s, a)
	}
	action := func(format string, args ...any) string {
		return fmt.Sprintf("node %d ", n) + fmt.Sprintf(format, args...)
	}
	var refusal []any
	code, _ := reply.(int64)
	if o.kind == "v" {
		refusal, _ = reply.([]any)
		code = refusal[0].(int64)
		tr.flight[n][a]--
	}
	none := named()
	switch say := fmt.Sprint(o.kind, code); say {
	case "v0":
		number, err := tr.small(refusal[1].(int64))
		if err != nil {
			return err
		}
		vote := action("votes %d for %s", number, who)
		if !heard || o.ask < len(tr.parties[client(a)].asks)-1 { // nobody waits for the answer to an Ask before
			vote += ", and the reply is lost"
		}
		tr.follow(func(s *state) bool {
			return (tr.seen[n].holder == a || mine(s) && s.nodes[n].number == number) && late(s, 0)
		},
			named(vote, action("gets a late request and votes %d for %s", number, who)))
	case "v1":
		h, known := tr.ids[refusal[2].(string)]
		if !known {
			return fmt.Errorf("refused for %v", refusal[2])
		}
		tr.follow(func(s *state) bool {
			holder := int(s.nodes[n].holder) - 1
			return holder < 0 && over(s, h) || holder == h && !tr.can(s, n, a, `votes \d+ for`)
		}, none)
	case "v2":
		tr.follow(func(s *state) bool { return s.nodes[n].quar }, none)
	case "v3":
		tr.follow(func(s *state) bool { return over(s, a) && s.nodes[n].cells[a].requests == 0 }, none)
	case "w1":
		token, err := tr.number(o.args[2])
		if err != nil {
			return err
		}
		tr.did["writes"]++
		tr.follow(func(s *state) bool {
			u := &s.nodes[n]
			return !u.quar && (late(s, token) || mine(s) && u.number == token && s.attempts[a].token == token)
		}, named(action("takes %d of %s", token, who)))
	case "w0":
		tr.did["refused"]++
		tr.follow(func(s *state) bool { return !tr.can(s, n, a, "takes") }, none)
	case "e1":
		tr.follow(func(s *state) bool {
			u := &s.nodes[n]
			asked := heard && tr.can(s, n, a, "renews")
			u.older.since = u.older.is
			return !asked && !u.quar && (mine(s) || over(s, a))
		}, func(st *explore.Step[state]) bool { return heard && named(action("renews %s's lock", who))(st) })
	case "e0":
		tr.follow(func(s *state) bool { return !mine(s) }, none)
	case "e-1":
		tr.follow(func(s *state) bool { return s.nodes[n].quar && (mine(s) || over(s, a)) }, none)
	case "a1":
		token, err := tr.number(o.args[1])
		if err != nil {
			return err
		}
		tr.did["again"]++
		tr.follow(func(s *state) bool { return !s.nodes[n].quar && late(s, token) },
			named(action("votes again for %s", who)))
	case "a0":
		tr.follow(func(s *state) bool {
			return s.nodes[n].holder == 0 && over(s, tr.seen[n].holder) || !tr.can(s, n, a, "votes again")
		}, none)
	case "r0", "r1":
		tr.released[n][a] = true
		tr.follow(func(s *state) bool { return over(s, a) && !tr.can(s, n, a, "gets") },
			named(action("gets %s's release", who)))
	default:
		return fmt.Errorf("%s of %s: %v", o.kind, who, reply)
	}
	return nil
}
