package redis

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/redisnode"
)

func init() {
	backend.Register("redis", open(single))
	backend.Register("rediss", open(single))
	backend.Register("redis+sentinel", open(sentinel))
	backend.Register("redis+cluster", open(cluster))
}

// settings are what every kind of URL may say of its connections.
type settings struct {
	redisnode.Settings
	hosts                          []string
	sentinelUser, sentinelPassword string // of the sentinels themselves
}

// open returns the opener of one kind of URL: make builds the client of it.
func open(dial func(settings) (goredis.UniversalClient, error)) backend.Opener {
	return func(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		prefix := q.Prefix()
		s, err := read(u, q)
		if err != nil {
			return nil, err
		}
		if err := q.Err(); err != nil {
			return nil, err
		}
		client, err := dial(s)
		if err != nil {
			return nil, err
		}
		d, err := New(client, &Options{Prefix: prefix, NoPrefix: prefix == ""})
		if err == nil {
			d.store.own, d.store.client = true, client // as it is: its options are ours
			err = d.store.probe(ctx)
		}
		if errors.Is(err, goredis.Nil) && u.Scheme == "redis+sentinel" {
			err = backend.Invalid("the sentinels know no master %q", s.Path[0])
		}
		if core.TimedOut(err) {
			hint := ""
			if s.TLS != nil {
				hint = ", which may not speak TLS"
			}
			err = fmt.Errorf("no answer from %s%s: %w", strings.Join(s.hosts, ","), hint, err)
		}
		if err != nil {
			// The first error is the one to report. A client that is dialling closes only when
			// that is over, which its timeouts bound.
			go func() { _ = client.Close() }()
			return nil, err
		}
		return d, nil
	}
}

// read takes the keys that all kinds of URL share.
func read(u *url.URL, q *backend.Query) (settings, error) {
	s := settings{hosts: backend.Hosts(u, "6379")}
	if u.Scheme == "redis+sentinel" {
		s.hosts = backend.Hosts(u, "26379")
		s.sentinelUser = q.String("sentinel_username", "")
		s.sentinelPassword = q.String("sentinel_password", "")
	}
	secure := q.Bool("tls", false) || u.Scheme == "rediss"
	var err error
	s.Settings, err = redisnode.ReadURL(u, q, requestMost, secure, "use rediss:// or add tls=true")
	return s, err
}

// options are what all kinds of URL have in common.
func (s settings) options() *goredis.UniversalOptions {
	return &goredis.UniversalOptions{
		Addrs: s.hosts, Username: s.User, Password: s.Password, ClientName: s.ClientName,
		SentinelUsername: s.sentinelUser, SentinelPassword: s.sentinelPassword,
		DialTimeout: s.Dial, DialerRetries: 1, ReadTimeout: s.Read, WriteTimeout: s.Read, MaxRetries: 1,
		ContextTimeoutEnabled: true, PoolSize: s.PoolSize, MinIdleConns: s.MinIdle, TLSConfig: s.TLS,
		PipelinePoolSize: -1, // the connections by which locks were taken renew them
		// A call, which may be the one that makes a connection, has no time for what go-redis asks first of all.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// single opens redis://[user:password@]host[:port][/db].
func single(s settings) (goredis.UniversalClient, error) {
	if len(s.hosts) != 1 {
		return nil, backend.Invalid(
			"a redis:// URL has one host, this has %d: use redis+cluster:// or redis+sentinel:// for several",
			len(s.hosts),
		)
	}
	db, err := redisnode.Database(s.Path)
	if err != nil {
		return nil, err
	}
	o := s.options()
	o.DB = db
	return goredis.NewClient(o.Simple()), nil
}

// sentinel opens redis+sentinel://[user:password@]s1[:26379],s2/master[/db].
func sentinel(s settings) (goredis.UniversalClient, error) {
	if len(s.Path) == 0 {
		return nil, backend.Invalid(
			"a redis+sentinel:// URL names the master group: redis+sentinel://s1:26379,s2:26379/mymaster[/db]",
		)
	}
	db, err := redisnode.Database(s.Path[1:])
	if err != nil {
		return nil, err
	}
	o := s.options()
	o.MasterName, o.DB = s.Path[0], db
	return goredis.NewFailoverClient(o.Failover()), nil
}

// cluster opens redis+cluster://[user:password@]n1[:6379],n2.
func cluster(s settings) (goredis.UniversalClient, error) {
	if len(s.Path) != 0 {
		return nil, backend.Invalid("a redis+cluster:// URL has no path: a cluster has one database")
	}
	o := s.options()
	o.DialerRetries, o.MaxRetries = 0, 0 // what go-redis does by default: another node may have the slots by now
	return goredis.NewClusterClient(o.Cluster()), nil
}

// probe asks the server for an answer, for the rights that pushes need, and for
// what it is.
func (s *store) probe(ctx context.Context) error {
	k := keysOf(s.prefix)
	_, err := do(ctx, s, func(ctx context.Context) (any, error) {
		return s.client.Do(ctx, s.publish, s.channel(k), "probe "+s.process).Result()
	})
	if err != nil {
		return err
	}
	if s.cluster != nil {
		return nil
	}
	text, err := do(ctx, s, func(ctx context.Context) (string, error) {
		return s.client.Info(ctx).Result() // of one section or all: several at once are Redis 7
	})
	switch {
	case err != nil && errors.Is(err, backend.ErrInvalid):
		return nil // INFO is not among the rights that we need
	case err != nil:
		return err
	case strings.Contains(text, "cluster_enabled:1"):
		return backend.Invalid("the server is a node of a Redis Cluster: use redis+cluster://")
	case strings.Contains(text, "role:slave"):
		return fmt.Errorf("the server is a replica, which cannot be written to")
	}
	return redisnode.TooOld(text)
}
