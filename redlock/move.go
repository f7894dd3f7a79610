package redlock

import (
	"context"
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// mendPause is how often at the most the gates of nodes that seem to have lost them are looked after.
const mendPause = time.Second

var errQuarantine = errors.New("in quarantine")

// A gate is one as a node has it: its record, which is its version as well.
type gate struct {
	record string
	epoch  int64
}

// gateList is the gates that a node has, by migration; nil if it has not answered.
type gateList map[string]gate

// gateList reads {migration, record, …}.
func (s *store) gateList(res []any) (gateList, error) {
	if len(res)%2 != 0 {
		return nil, s.badGate()
	}
	l := gateList{}
	for pair := range slices.Chunk(res, 2) {
		record, _ := pair[1].(string)
		gates, err := backend.DecodeGates([]byte("[" + record + "]"))
		if err != nil || len(gates) != 1 || gates[0].Move != pair[0] {
			return nil, s.badGate()
		}
		l[gates[0].Move] = gate{record, gates[0].Epoch}
	}
	return l, nil
}

func (s *store) badGate() error {
	return backend.Invalid("the key %q, which keeps the gates of migrations, holds something "+
		"else, which some other program put there: until that is gone the node grants nothing",
		gatesKey+s.prefix)
}

// version is all records.
func (l gateList) version() string {
	var records []string
	for _, move := range slices.Sorted(maps.Keys(l)) {
		records = append(records, l[move].record)
	}
	return strings.Join(records, ",")
}

// latest is of each migration the gate with the greatest epoch.
func latest(lists []gateList) gateList {
	all := gateList{}
	for _, l := range lists {
		for move, g := range l {
			if g.epoch > all[move].epoch {
				all[move] = g
			}
		}
	}
	return all
}

// otherGates says which gates the claim is to be judged by: those of a majority, or else the latest.
func (v *votes) otherGates() error {
	all := slices.Clone(v.gates)
	if known := v.c.Gates; known != nil { // what the other nodes have
		gates, _ := backend.DecodeGates(known.Data) // if there are any
		l := gateList{}
		for _, g := range gates {
			record, _ := json.Marshal(g) // of strings and numbers: never fails
			l[g.Move] = gate{string(record), g.Epoch}
		}
		all = append(all, l)
	}
	pick, many := latest(all), map[string]int{}
	for _, l := range v.gates {
		if many[l.version()]++; many[l.version()] >= v.s.quorum {
			pick = l
		}
	}
	switch known := pick.version(); known {
	case version(v.c.Gates):
		return errGates
	case "":
		v.c.Gates = nil
	default:
		v.c.Gates = &backend.Record{Key: backend.GateKey, Data: []byte("[" + known + "]"), Version: known}
	}
	return backend.ErrGates
}

// forgetful reports whether a node seems to have no gate that others have, or may have lost what it had.
func (v *votes) forgetful() bool {
	return v.unsettled || len(v.gates) > 0 && (len(v.gates) < v.good ||
		slices.ContainsFunc(v.gates, func(l gateList) bool { return l.version() != v.gates[0].version() }))
}

// mendSoon looks after the gates in the background, since a node may have lost them.
func (s *store) mendSoon() {
	now := time.Now().UnixNano()
	if last := s.mended.Load(); now-last < int64(mendPause) || !s.mended.CompareAndSwap(last, now) {
		return
	}
	s.flying.Go(func() {
		_, _ = s.gates(context.Background()) // its calls are bounded, and a later vote finds what is still amiss
	})
}

// gates returns what the nodes have, nil for one that does not answer. A majority must. Nodes without a
// gate, or with an older one, get the latest first: they lost it, or its change was interrupted, and a
// change that has begun may always be finished.
func (s *store) gates(ctx context.Context) ([]gateList, error) {
	for again := false; ; again = true {
		lists := make([]gateList, len(s.nodes))
		q := s.ask(ctx, callMost, []op{{s.prefix, []any{"g"}}}, nil)
		err := q.majority(ctx, func(a answer) (err error) {
			res, _ := a.replies[0].([]any)
			lists[a.node], err = s.gateList(res)
			return err
		})
		for _, a := range q.seen() {
			if errors.Is(a.err, backend.ErrInvalid) {
				err = a.err
			}
		}
		if err != nil || again {
			return lists, err
		}
		var rs []backend.Record
		all := latest(lists)
		for i, l := range lists {
			for move := range all {
				if l != nil && l[move].epoch < all[move].epoch { // of one epoch neither is the later
					rs = append(rs, backend.Record{
						Key: backend.GateKey + move, Place: strconv.Itoa(i),
						Data: []byte(all[move].record), Version: l[move].record,
					})
				}
			}
		}
		if len(rs) == 0 || s.Swap(ctx, rs, 0) != nil && ctx.Err() != nil {
			return lists, ctx.Err()
		}
	}
}

// Load implements backend.Mover. Each node is a place. Of a client it yields its last report.
func (s *store) Load(ctx context.Context, prefix string) iter.Seq2[backend.Record, error] {
	return redisnode.Records(func() ([]backend.Record, error) {
		if move, _, ok := redisnode.Report(prefix); ok {
			return s.clients(ctx, move, "", "", 0)
		}
		return s.loadGates(ctx)
	})
}

func (s *store) loadGates(ctx context.Context) (all []backend.Record, err error) {
	lists, err := s.gates(ctx)
	if err != nil {
		return nil, err
	}
	for i, l := range lists {
		place := strconv.Itoa(i)
		switch {
		case l == nil:
			all = append(all, backend.Record{Key: backend.GateKey, Place: place, Version: backend.UnknownVersion})
		case len(l) == 0:
			all = append(all, backend.Record{Key: backend.GateKey, Place: place})
		}
		for move, g := range l {
			all = append(all, backend.Record{
				Key: backend.GateKey + move, Place: place, Data: []byte(g.record), Version: g.record,
			})
		}
	}
	return all, nil
}

// Swap implements backend.Mover. A gate must be taken by every node that it is for: one that did
// not would go on voting as before. A majority is enough for what a client reports.
func (s *store) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	if move, id, ok := redisnode.Report(rs[0].Key); ok {
		_, err := s.clients(ctx, move, id, string(rs[0].Data), keep)
		return err
	}
	var nodes []*node
	for _, rec := range rs {
		i, err := strconv.Atoi(rec.Place)
		if err != nil {
			return err
		}
		nodes = append(nodes, s.nodes[i])
	}
	q := s.askEach(nodes, len(nodes), callMost, func(i int) op {
		move := strings.TrimPrefix(rs[i].Key, backend.GateKey)
		return op{s.prefix, []any{"o", move, string(rs[i].Data), rs[i].Version}}
	})
	changed := false
	err := q.each(ctx, callMost, func(a answer) error {
		switch a.replies[0] {
		case int64(1):
			return nil
		case int64(0):
			changed = true
			return nil
		}
		return s.badGate()
	}, nil)
	switch {
	case err != nil:
		return err
	case changed:
		return backend.ErrGates
	case q.good < len(nodes):
		err = q.because("every node must take a change of the gate", len(nodes))
		if !backend.Final(err) {
			err = backend.Unavailable(err)
		}
		return err
	}
	return nil
}

// clients takes in or deletes a report, if there is an id, and returns what a majority or more of
// the nodes have: of each client its last report. A node that does not answer forgets by itself.
func (s *store) clients(ctx context.Context, move, id, record string, keep time.Duration,
) (all []backend.Record, err error) {
	type dated struct {
		backend.Record
		at time.Time
	}
	last := map[string]dated{}
	report := []any{"k", move, id, record, redisnode.Millis(keep)}
	err = s.ask(ctx, callMost, []op{{s.prefix, report}}, nil).majority(ctx, func(a answer) error {
		res, ok := a.replies[0].([]any)
		if !ok || len(res)%2 != 0 {
			return redisnode.Unexpected(a.replies[0])
		}
		for pair := range slices.Chunk(res, 2) {
			id, _ := pair[0].(string)
			text, _ := pair[1].(string)
			var c backend.Client
			if err := json.Unmarshal([]byte(text), &c); err != nil {
				return backend.Invalid("the clients of migration %q hold something else: %v", move, err)
			}
			if old, ok := last[id]; !ok || c.Reported.After(old.at) {
				last[id] = dated{backend.Record{
					Key: backend.ClientKey + move + "\x00" + id, Data: []byte(text), Version: text,
				}, c.Reported}
			}
		}
		return nil
	})
	for _, r := range last {
		all = append(all, r.Record)
	}
	return all, err
}

// Source implements backend.Mover: the greatest number of all nodes that have settled, of which one
// of any majority knows each token, and at least their clocks.
func (s *store) Source(ctx context.Context) (backend.Token, error) {
	var top backend.Token
	err := s.ask(ctx, callMost, []op{{s.prefix, []any{"n"}}}, nil).majority(ctx, func(a answer) error {
		n, ok := a.replies[0].(int64)
		switch {
		case !ok:
			return redisnode.Unexpected(a.replies[0])
		case n == 0:
			return errQuarantine
		}
		top = max(top, n)
		return nil
	})
	return top, err
}

// Raise implements backend.Mover: a majority of the nodes gives only numbers above floor from then
// on, and every grant has the vote of one of them.
func (s *store) Raise(ctx context.Context, floor backend.Token, held *backend.Claim) error {
	if held != nil {
		lock := s.prefix + held.Name
		args := []any{"h", s.place(held).ballot.id, held.Token, bucket(lock), floor}
		return s.ask(ctx, callMost, []op{{lock, args}}, nil).holder(ctx, false)
	}
	return s.ask(ctx, callMost, []op{{s.prefix, []any{"m", floor}}}, nil).majority(ctx, func(a answer) error {
		if a.replies[0] != int64(1) {
			return errQuarantine
		}
		return nil
	})
}
