package redlock

import (
	"context"
	"crypto/tls"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// probeAgain is the pause between two tries to open.
const probeAgain = 100 * time.Millisecond

func init() {
	backend.Register("redlock", open)
	backend.Register("redlocks", open)
}

// settings are what a URL says of its connections.
type settings struct {
	user, password, clientName string
	db, pool, idle             int
	dial, read                 time.Duration
	tls                        *tls.Config
}

// open opens redlock://[user:password@]h1[:6379],h2,h3[/db]. A majority must answer.
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	prefix := q.Prefix()
	opts := &Options{Prefix: prefix, NoPrefix: prefix == ""}
	opts.Quarantine = q.Duration("quarantine", DefaultQuarantine)
	opts.Fresh = q.Bool("fresh", false)
	drift := q.String("drift", "")
	s, err := read(u, q)
	if err != nil {
		return nil, err
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if drift != "" {
		if opts.Drift, err = strconv.ParseFloat(drift, 64); err != nil || opts.Drift <= 0 || opts.Drift >= 0.5 {
			return nil, backend.Invalid("drift of the %q URL: want a share of the TTL above 0 and below 0.5, such as 0.01", u.Scheme)
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
		clients = append(clients, goredis.NewClient(s.options(h)))
	}
	d, err := New(clients, opts)
	if err == nil {
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
			}
			for _, c := range clients {
				_ = c.Close()
			}
		}()
		return nil, err
	}
	d.own = true
	return d, nil
}

// options are those of a client that we open.
func (s settings) options(addr string) *goredis.Options {
	return &goredis.Options{
		Addr: addr, Username: s.user, Password: s.password, DB: s.db, ClientName: s.clientName,
		DialTimeout: s.dial, DialerRetries: 1, ReadTimeout: s.read, WriteTimeout: s.read, MaxRetries: -1,
		ContextTimeoutEnabled: true, PoolSize: s.pool, MinIdleConns: s.idle, TLSConfig: s.tls,
	}
}

// read takes the keys that are about connections.
func read(u *url.URL, q *backend.Query) (settings, error) {
	s := settings{
		clientName: q.String("client_name", ""),
		dial:       q.Duration("dial_timeout", callMost),
		read:       q.Duration("read_timeout", callMost),
		pool:       q.Int("pool_size", 0, 0, 100_000),
		idle:       q.Int("min_idle_conns", 0, 0, 100_000),
	}
	if u.User != nil {
		s.user = u.User.Username()
		s.password, _ = u.User.Password()
	}
	var err error
	if p := strings.Trim(u.Path, "/"); p != "" {
		if s.db, err = strconv.Atoi(p); err != nil || s.db < 0 {
			return s, backend.Invalid("the path %q of the %q URL: want a database number such as /0", u.Path, u.Scheme)
		}
	}
	s.tls, err = tlsurl.Config(u.Scheme == "redlocks", q, "use redlocks://")
	return s, err
}

// probe wants an answer of a majority, and gives the operator's word if there is one. It tries again until ctx ends,
// except where that is of no use.
func (d *Driver) probe(ctx context.Context) error {
	for {
		err := d.answering(ctx)
		if err == nil && d.fresh.Load() {
			err = d.settle(ctx)
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

// answering wants an answer of a majority.
func (d *Driver) answering(ctx context.Context) error {
	answered, silent := 0, silence{d: d}
	err := d.each(ctx, d.ask([]op{{stateKey, []any{"s"}}}, callMost), callMost, func(a answer) bool {
		if a.err != nil {
			silent.add(a.node, a.err)
		} else {
			answered++
		}
		return answered >= d.quorum
	})
	if err == nil && answered < d.quorum {
		err = silent.err(answered)
	}
	return err
}
