package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// othersFresh is how often a client looks whether another is just giving the operator's word.
	othersFresh = 10
	// othersPause is how long it waits in between.
	othersPause = 30 * time.Millisecond
)

// settle gives the operator's word that no lock was forgotten. It is heeded only where it can be
// true: every node must answer and none may have settled yet, for among nodes that have, one that
// has not is one that lost its data. Otherwise the nodes keep to their quarantine. So the word may
// stay in a configuration: it does nothing for a node that restarts.
func (s *store) settle(ctx context.Context) error {
	for range othersFresh {
		states, err := s.states(ctx)
		if err != nil {
			return fmt.Errorf("fresh: %w", err)
		}
		settled := 0
		for _, st := range states {
			if st.settled {
				settled++
			}
		}
		if settled == 0 {
			err := s.vouch(ctx, states)
			if err == nil {
				s.fresh.Store(false)
			}
			return err
		}
		if settled == len(states) {
			break
		}
		timer := time.NewTimer(othersPause) // the others may be following at another client's word
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	s.fresh.Store(false)
	return nil
}

// vouch ends the quarantines that were seen, and no others.
func (s *store) vouch(ctx context.Context, states []state) error {
	r := s.round(s.nodes, s.quorum)
	for i, n := range s.nodes {
		n.send(&request{
			to: r, by: time.Now().Add(callMost),
			ops: []op{{stateKey, []any{"f", states[i].run, states[i].until}}},
		})
	}
	return r.majority(ctx, func(a answer) error {
		if a.replies[0] != int64(1) {
			return errors.New("fresh: in another quarantine")
		}
		return nil
	})
}

// state is a node's.
type state struct {
	settled    bool
	run, until string // which quarantine it is in
	began      string // when it or the last one began
}

// stateOf reads a reply of look.lua's s.
func stateOf(reply any) (st state, err error) {
	res, _ := reply.([]any)
	if len(res) != 5 {
		return st, unexpected(reply)
	}
	st.settled = res[0] == int64(1)
	st.run, _ = res[2].(string)
	st.until, _ = res[3].(string)
	st.began, _ = res[4].(string)
	return st, nil
}

// states asks every node, and wants the answer of every one.
func (s *store) states(ctx context.Context) ([]state, error) {
	all := make([]state, len(s.nodes))
	r := s.ask(ctx, callMost, []op{{stateKey, []any{"s"}}}, nil)
	err := r.each(ctx, callMost, func(a answer) (err error) {
		all[a.node], err = stateOf(a.replies[0])
		return err
	}, nil)
	if err == nil && r.good < len(s.nodes) {
		err = r.because(fmt.Sprintf("%d of %d nodes answered, and all must", r.good, len(s.nodes)))
	}
	return all, err
}
