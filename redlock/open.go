package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// probeAgain is the pause between two tries to open.
	probeAgain = 100 * time.Millisecond
	// lookMore is how long a client that opens waits for the other nodes after a majority.
	lookMore = 100 * time.Millisecond
)

func init() {
	backend.Register("redlock", open)
	backend.Register("redlocks", open)
}

// open opens redlock://[user:password@]h1[:6379],h2,h3[/db]. A majority must answer.
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	opts := &Options{Prefix: prefix, NoPrefix: prefix == ""}
	opts.Quarantine = q.Duration("quarantine", DefaultQuarantine)
	opts.Fresh = q.Bool("fresh", false)
	drift, ttl := q.String("drift", ""), q.Duration("ttl", 0)
	o, err := read(u, q)
	if err == nil {
		err = q.Err()
	}
	if err != nil {
		return nil, err
	}
	if drift != "" {
		if opts.Drift, err = strconv.ParseFloat(drift, 64); err != nil || !(opts.Drift > 0 && opts.Drift < 0.5) {
			return nil, backend.Invalid("drift of the %q URL: want a share of the TTL above 0 "+
				"and below 0.5, such as 0.01", u.Scheme)
		}
	}
	if ttl > opts.Quarantine {
		return nil, tooLong(ttl, opts.Quarantine)
	}
	hosts := backend.Hosts(u, "6379")
	for i, h := range hosts {
		if slices.Contains(hosts[:i], h) {
			return nil, backend.Invalid("node %s stands twice in the %q URL: each node votes once", h, u.Scheme)
		}
	}
	var clients []goredis.UniversalClient
	for _, h := range hosts {
		one := *o
		one.Addr = h
		clients = append(clients, goredis.NewClient(&one))
	}
	d, err := New(clients, opts)
	if err == nil {
		d.own = true
		for i, c := range clients {
			d.nodes[i].client = c // as it is: its options are ours
		}
		err = d.probe(ctx)
	}
	if err != nil {
		// The first error is the one to report. A client that is dialling closes only when
		// that is over, which its timeouts bound.
		go func() {
			if d != nil {
				_ = d.Close()
				return
			}
			for _, c := range clients {
				_ = c.Close()
			}
		}()
		return nil, err
	}
	return d, nil
}

// quiet saves each new connection the round trip in which go-redis asks for a managed service's notices, as its
// DisableIdentity does another: a call, which may be the one that makes a connection, has time for few.
var quiet = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// read takes the keys that are about connections, which all nodes share.
func read(u *url.URL, q *backend.Query) (*goredis.Options, error) {
	s, err := redisnode.ReadURL(u, q, callMost, u.Scheme == "redlocks", "use redlocks://")
	if err != nil {
		return nil, err
	}
	db, err := redisnode.Database(s.Path)
	return &goredis.Options{
		Username: s.User, Password: s.Password, DB: db, ClientName: s.ClientName,
		DialTimeout: s.Dial, DialerRetries: 1, ReadTimeout: s.Read, WriteTimeout: s.Read, MaxRetries: -1,
		ContextTimeoutEnabled: true, PoolSize: s.PoolSize, MinIdleConns: s.MinIdle, TLSConfig: s.TLS,
		DisableIdentity: true, MaintNotificationsConfig: quiet,
	}, err
}

// probe wants an answer of a majority, and gives the operator's word if there is one. It tries again
// until ctx ends, except where that is of no use.
func (s *store) probe(ctx context.Context) error {
	var last error // that says more than the end of ctx
	end, bounded := ctx.Deadline()
	for {
		err := s.look(ctx)
		if err == nil && s.fresh.Load() {
			err = s.settle(ctx)
		}
		if err == nil || backend.Final(err) {
			return err
		}
		if last == nil || ctx.Err() == nil && (!bounded || time.Now().Before(end)) { // what it asked may end first
			last = err
		}
		select {
		case <-time.After(probeAgain):
		case <-ctx.Done():
			return last
		}
	}
}

// lookOnce looks at the nodes of clients that were given: New has sent nothing. An outage is the business of what is
// asked next.
func (s *store) lookOnce(ctx context.Context) error {
	if !s.looked.Load() {
		if err := s.look(ctx); err != nil && backend.Final(err) {
			return err
		}
	}
	return nil
}

// look wants the states of a majority of the nodes. Of the nodes that answer in time none may be too
// old, and no two may be one server.
func (s *store) look(ctx context.Context) error {
	var bad error
	addrs := map[string]string{} // by run id and settings, which begin with the database
	q := s.ask(ctx, callMost, []op{{stateKey, []any{"s"}}}, nil)
	take := func(a answer) error {
		st, info, err := stateOf(a.replies[0])
		if err != nil {
			return err
		}
		addr, its := s.nodes[a.node].addr, st.run+" "+s.nodes[a.node].settings
		if old := redisnode.TooOld(info); old != nil {
			bad = fmt.Errorf("%s: %w", addr, old)
		}
		if other := addrs[its]; other != "" {
			bad = backend.Invalid("%s and %s are one server: each node votes once", other, addr)
		}
		addrs[its] = addr
		return nil
	}
	err := q.each(ctx, callMost, take, func() bool { return q.good >= s.quorum })
	if err == nil {
		_ = q.each(ctx, lookMore, take, nil)
	}
	err = cmp.Or(bad, q.enough(err))
	s.looked.Store(err == nil)
	return err
}

// settle gives the operator's word that no lock was forgotten. It is heeded only where it can be
// true: every node must answer and none may have settled before, as its data tells, for among nodes that have, one
// that has not is one that lost its data. Otherwise the nodes keep to their quarantine. So it does nothing
// for a node that restarts, but all that restart without their data within one quarantine look new. Where some have
// settled, another client may be giving its word, and the others follow.
func (s *store) settle(ctx context.Context) error {
	states := make([]state, len(s.nodes))
	q := s.ask(ctx, callMost, []op{{stateKey, []any{"s"}}}, nil)
	err := q.each(ctx, callMost, func(a answer) (err error) {
		states[a.node], _, err = stateOf(a.replies[0])
		return err
	}, nil)
	used := slices.ContainsFunc(states, func(st state) bool { return st.used })
	if err == nil && !used && q.good < len(s.nodes) {
		err = q.because(fmt.Sprintf("%d of %d nodes answered, and all must", q.good, len(s.nodes)), len(s.nodes))
	}
	if err != nil {
		return fmt.Errorf("fresh: %w", err)
	}
	if !used {
		// The quarantines that were seen end, and no others.
		q := s.askEach(s.nodes, s.quorum, callMost, func(i int) op {
			return op{stateKey, []any{"f", states[i].run, states[i].until}}
		})
		err = q.majority(ctx, func(a answer) error {
			if a.replies[0] != int64(1) {
				return errors.New("fresh: in another quarantine")
			}
			return nil
		})
	}
	if err == nil {
		s.fresh.Store(false)
	}
	return err
}

// state is a node's.
type state struct {
	settled    bool
	used       bool   // it has settled before, or has now
	run, until string // which quarantine it is in
	began      string // when it or the last one began
}

// stateOf reads a reply of look.lua's s, with what the server says of itself.
func stateOf(reply any) (st state, info string, err error) {
	var settled int64
	if !redisnode.Read(reply, &settled, &st.run, &st.until, &st.began, &info) {
		err = redisnode.Unexpected(reply)
	}
	st.settled, st.used = settled == 1, settled != 0
	return st, info, err
}
