package redlock

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// probeAgain is the pause between two tries to open.
const probeAgain = 100 * time.Millisecond

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
	drift := q.String("drift", "")
	o, err := read(u, q)
	if err != nil {
		return nil, err
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if drift != "" {
		if opts.Drift, err = strconv.ParseFloat(drift, 64); err != nil || opts.Drift <= 0 || opts.Drift >= 0.5 {
			return nil, backend.Invalid("drift of the %q URL: want a share of the TTL above 0 "+
				"and below 0.5, such as 0.01", u.Scheme)
		}
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
	s, err := newStore(clients, opts)
	if err == nil {
		for i, c := range clients {
			s.nodes[i].client = c // as it is: its options are ours
		}
		err = s.probe(ctx)
	}
	if err != nil {
		// The first error is the one to report. A client that is dialling closes only when
		// that is over, which its timeouts bound.
		go func() {
			if s != nil {
				_ = s.Close()
			}
			for _, c := range clients {
				_ = c.Close()
			}
		}()
		return nil, err
	}
	s.own = true
	return &Driver{s}, nil
}

// read takes the keys that are about connections, which all nodes share.
func read(u *url.URL, q *backend.Query) (*goredis.Options, error) {
	most := q.Duration("read_timeout", callMost)
	o := &goredis.Options{
		ClientName: q.String("client_name", ""), DialTimeout: q.Duration("dial_timeout", callMost),
		ReadTimeout: most, WriteTimeout: most, ContextTimeoutEnabled: true, DialerRetries: 1, MaxRetries: -1,
		PoolSize: q.Int("pool_size", 0, 0, 100_000), MinIdleConns: q.Int("min_idle_conns", 0, 0, 100_000),
	}
	if u.User != nil {
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
	}
	var err error
	if p := strings.Trim(u.Path, "/"); p != "" {
		if o.DB, err = strconv.Atoi(p); err != nil || o.DB < 0 {
			return nil, backend.Invalid("the path %q of the %q URL: want a database number such as /0",
				u.Path, u.Scheme)
		}
	}
	o.TLSConfig, err = tlsurl.Config(u.Scheme == "redlocks", q, "use redlocks://")
	return o, err
}

// probe wants an answer of a majority, and gives the operator's word if there is one. It tries again until ctx ends,
// except where that is of no use.
func (s *store) probe(ctx context.Context) error {
	for {
		r := s.ask(ctx, callMost, []op{{stateKey, []any{"s"}}}, nil)
		err := r.enough(r.each(ctx, callMost, func(answer) error { return nil },
			func() bool { return r.good >= s.quorum }))
		if err == nil {
			err = s.tooOld(ctx, r)
		}
		if err == nil && s.fresh.Load() {
			err = s.settle(ctx)
		}
		if err == nil || backend.Final(err) {
			return err
		}
		timer := time.NewTimer(probeAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// tooOld asks the nodes that have answered which version they are.
func (s *store) tooOld(ctx context.Context, r *round) error {
	ctx, cancel := context.WithTimeout(ctx, callMost)
	defer cancel()
	r.mu.Lock()
	heard := r.heard[:r.taken]
	r.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(s.nodes))
	for _, a := range heard {
		if a.err != nil {
			continue
		}
		wg.Go(func() {
			if info, err := s.nodes[a.node].client.Info(ctx, "server").Result(); err == nil {
				errs[a.node] = redisnode.TooOld(info)
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("%s: %w", s.nodes[i].addr, err)
		}
	}
	return nil
}
