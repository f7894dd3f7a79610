package doctor

import (
	"crypto/tls"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// redisSettings are what a URL of Redis or Redlock says of the connections. The driver has checked it.
type redisSettings struct {
	hosts                          []string
	user, password                 string
	sentinelUser, sentinelPassword string
	master                         string // of a Sentinel group
	db                             int
	tls                            *tls.Config
}

func (x *exam) redisSettings() (redisSettings, error) {
	s := redisSettings{sentinelUser: x.keys.Get("sentinel_username"), sentinelPassword: x.keys.Get("sentinel_password")}
	port := "6379"
	path := strings.Split(strings.Trim(x.u.Path, "/"), "/")
	if x.u.Scheme == "redis+sentinel" {
		port, s.master, path = "26379", path[0], path[1:]
	}
	if len(path) > 0 {
		s.db, _ = strconv.Atoi(path[0]) // 0 where there is none
	}
	s.hosts = backend.Hosts(x.u, port)
	if x.u.User != nil {
		s.user = x.u.User.Username()
		s.password, _ = x.u.User.Password()
	}
	var err error
	secure := x.u.Scheme == "rediss" || x.u.Scheme == "redlocks" || x.q.Bool("tls", false)
	s.tls, err = tlsurl.Config(secure, x.q, "use rediss:// or redlocks://")
	return s, err
}

// options are those of a connection to one server.
func (s redisSettings) options(addr string) *goredis.Options {
	return &goredis.Options{
		Addr: addr, Username: s.user, Password: s.password, DB: s.db, TLSConfig: s.tls, PoolSize: 2,
		DialTimeout: askMost, DialerRetries: 1, ReadTimeout: askMost, WriteTimeout: askMost, MaxRetries: -1, ContextTimeoutEnabled: true,
	}
}
