package redisnode

import (
	"crypto/tls"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// Settings are what a URL says of the connections to Redis servers.
type Settings struct {
	User, Password    string
	ClientName        string
	Dial, Read        time.Duration // the time limits of a dial, and of a read or a write
	PoolSize, MinIdle int
	TLS               *tls.Config
	Path              []string
}

// ReadURL takes the user, the path, and the keys of a URL that are about connections. Without TLS
// (secure) its keys are refused, and remedy says how it is switched on.
func ReadURL(u *url.URL, q *backend.Query, read time.Duration, secure bool, remedy string) (Settings, error) {
	s := Settings{
		ClientName: q.String("client_name", ""),
		Dial:       q.Duration("dial_timeout", 2*time.Second),
		Read:       q.Duration("read_timeout", read),
		PoolSize:   q.Int("pool_size", 0, 0, 100_000),
		MinIdle:    q.Int("min_idle_conns", 0, 0, 100_000),
	}
	if u.User != nil {
		s.User = u.User.Username()
		s.Password, _ = u.User.Password()
	}
	if p := strings.Trim(u.Path, "/"); p != "" {
		s.Path = strings.Split(p, "/")
	}
	var err error
	s.TLS, err = tlsurl.Config(secure, q, remedy)
	return s, err
}

// Database reads the number of a database from what a URL's path has for it.
func Database(path []string) (int, error) {
	if len(path) == 0 {
		return 0, nil
	}
	db, err := strconv.Atoi(path[0])
	if err != nil || db < 0 || len(path) > 1 {
		return 0, backend.Invalid("the path %q of the Redis URL: want a database number such as /0",
			"/"+strings.Join(path, "/"))
	}
	return db, nil
}
