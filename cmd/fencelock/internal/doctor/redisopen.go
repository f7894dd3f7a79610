package doctor

import (
	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// redisOptions reads the connections' options from a URL of Redis or Redlock. The driver has checked it.
func (x *exam) redisOptions() (*goredis.UniversalOptions, error) {
	secure := x.u.Scheme == "rediss" || x.u.Scheme == "redlocks" || x.q.Bool("tls", false)
	s, err := redisnode.ReadURL(x.u, x.q, askMost, secure, "use rediss:// or redlocks://")
	if err != nil {
		return nil, err
	}
	o := &goredis.UniversalOptions{
		Addrs: backend.Hosts(x.u, "6379"), Username: s.User, Password: s.Password, TLSConfig: s.TLS,
		SentinelUsername: x.q.String("sentinel_username", ""),
		SentinelPassword: x.q.String("sentinel_password", ""),
		PoolSize:         2, DialerRetries: 1, MaxRetries: -1, MaxRedirects: -1,
		DialTimeout: askMost, ReadTimeout: askMost, WriteTimeout: askMost,
		ContextTimeoutEnabled: true,
	}
	if x.u.Scheme == "redis+sentinel" {
		o.Addrs, o.MasterName, s.Path = backend.Hosts(x.u, "26379"), s.Path[0], s.Path[1:]
	}
	o.DB, err = redisnode.Database(s.Path)
	return o, err
}

// redisAt are the options of a connection to one server.
func redisAt(o goredis.UniversalOptions, addr string) *goredis.Options {
	o.Addrs = []string{addr}
	return o.Simple()
}
