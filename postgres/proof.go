package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencelock/fencelock/backend"
)

// proof is a commit that the synchronous standby has confirmed. A primary whose standby was promoted gets no proof,
// though its sessions go on, and hold locks that the new primary grants to others.
type proof struct {
	sent     backend.Instant
	timeline string
}

// mayWait follows what fencelock_take returns, and what tells a transaction, where a COMMIT may wait for a standby.
const mayWait = "||CASE current_setting('synchronous_standby_names')WHEN''THEN''ELSE' waits'END"

// proving is such a commit. Where the role does without that wait, so does this.
const proving = "SELECT CASE WHEN current_setting('synchronous_commit') NOT IN ('off', 'local') " +
	"THEN pg_logical_emit_message(true, 'fencelock', ''::text)::text END, " + timeline

// prove returns when the last proof was asked for, and gets one unless that was since. The proof is about the server
// with this timeline. One caller gets it for all that wait.
func (r *row) prove(ctx context.Context, timeline string, since backend.Instant) (backend.Instant, error) {
	select {
	case r.proving <- struct{}{}:
		defer func() { <-r.proving }()
	case <-ctx.Done():
		return since, ctx.Err()
	}
	if last := r.last(timeline); last.Sub(since) >= 0 {
		return last, nil
	}
	var none *string
	sent := backend.Now()
	if err := r.commits(ctx, timeline, true, proving, nil, &none); err != nil {
		return since, err
	}
	return sent, nil
}

// commits asks the server with this timeline what commits, by another connection: it is a proof. The connection may
// lead elsewhere: to a server that was the primary once. waits: it may wait for a standby.
func (r *row) commits(ctx context.Context, timeline string, waits bool, sql string, args []any, answer any) error {
	p := proof{sent: backend.Now()}
	err := r.upkeep(ctx, sql, args, func(row scanner) error { return row.Scan(answer, &p.timeline) })
	switch {
	case err != nil && waits && p.sent.Elapsed() > slotMost: // all may lead to one whose standby was promoted
		r.own.Reset()
		return err
	case err != nil:
		return err
	case p.timeline != timeline:
		return r.elsewhere(timeline, p.timeline)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.proof = p
	return nil
}

var (
	// errElsewhere: a token of another history is not worth anything, nor is a commit.
	errElsewhere = errors.New("the lock and its token are of different servers, one of which was promoted")
	// errBehind is the same where the lock is on the older one.
	errBehind = fmt.Errorf("%w since", errElsewhere)
)

// elsewhere is the error of a session on the server with one timeline, where another connection leads to that with
// the other. The connections of whichever is behind are given up.
func (r *row) elsewhere(ours, other string) error {
	if ours < other {
		return errBehind
	}
	r.own.Reset()
	return errElsewhere
}

// last returns when the last proof for a timeline was asked for.
func (r *row) last(timeline string) backend.Instant {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.proof.timeline != timeline {
		return backend.Instant{}
	}
	return r.proof.sent
}

// grantProved is grant with a proof that the session is on the primary, for a request of that moment. The grant counts
// from then, or from an older proof: a lease that is renewed by itself may have one that is a third of the TTL old. The
// caller has the turn.
func (s *session) grantProved(ctx context.Context, c *backend.Claim, asked backend.Instant) error {
	from := asked
	if s.waits {
		since := asked
		if c.Auto {
			since = asked.Add(-c.TTL / 3)
		}
		last, err := s.row.prove(ctx, s.at.timeline, since)
		if err != nil {
			return s.unproved(ctx, c, err)
		}
		if last.Sub(asked) < 0 {
			from = last
		}
	}
	err := s.grant(ctx, c, from)
	if err == nil {
		c.Grant.Sent = asked.Sub(from)
	}
	return err
}

// unproved is what becomes of a session that would have the lock, but for a proof or a token: a waiter has the door
// yet, and asks again, unless its server is the older one.
func (s *session) unproved(ctx context.Context, c *backend.Claim, err error) error {
	if c.Wait && !errors.Is(err, errBehind) {
		s.stand(waiting)
		return err
	}
	return s.refused(ctx, err)
}

// proven reports whether such a proof is there.
func (s *session) proven(c *backend.Claim) bool {
	return s.row.last(s.at.timeline).Elapsed() <= c.TTL/3
}
