package doctor

import (
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// redisOptions are what a URL of Redis or Redlock says of the connections. The driver has checked
// it.
func (x *exam) redisOptions() (*goredis.UniversalOptions, error) {
	o := &goredis.UniversalOptions{
		SentinelUsername: x.keys.Get("sentinel_username"),
		SentinelPassword: x.keys.Get("sentinel_password"),
		PoolSize:         2, DialerRetries: 1, MaxRetries: -1, MaxRedirects: -1,
		DialTimeout: askMost, ReadTimeout: askMost, WriteTimeout: askMost,
		ContextTimeoutEnabled: true,
	}
	port := "6379"
	path := strings.Split(strings.Trim(x.u.Path, "/"), "/")
	if x.u.Scheme == "redis+sentinel" {
		port, o.MasterName, path = "26379", path[0], path[1:]
	}
	if len(path) > 0 {
		o.DB, _ = strconv.Atoi(path[0]) // 0 where there is none
	}
	o.Addrs = backend.Hosts(x.u, port)
	if x.u.User != nil {
		o.Username = x.u.User.Username()
		o.Password, _ = x.u.User.Password()
	}
	var err error
	secure := x.u.Scheme == "rediss" || x.u.Scheme == "redlocks" || x.q.Bool("tls", false)
	o.TLSConfig, err = tlsurl.Config(secure, x.q, "use rediss:// or redlocks://")
	return o, err
}

// redisAt are the options of a connection to one server.
func redisAt(o goredis.UniversalOptions, addr string) *goredis.Options {
	o.Addrs = []string{addr}
	return o.Simple()
}
