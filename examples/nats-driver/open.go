package natskv

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/fencelock/fencelock/backend"
)

func init() { backend.Register("nats", open) }

// open makes a driver from nats://[user:password@|token@]host[:4222][,host…][/bucket][?prefix=…].
func open(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
	o := &Options{Bucket: strings.Trim(u.Path, "/"), Prefix: q.Prefix()}
	o.NoPrefix = o.Prefix == ""
	if err := q.Err(); err != nil {
		return nil, err
	}
	opts := []nats.Option{
		nats.Name("fencelock"), nats.Timeout(2 * time.Second),
		// A request that is late is worth nothing: what cannot be sent now is not kept to be sent later.
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond),
		nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond), nats.PingInterval(10 * time.Second),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), // the default one prints
	}
	if password, ok := u.User.Password(); ok {
		opts = append(opts, nats.UserInfo(u.User.Username(), password))
	} else if u.User != nil {
		opts = append(opts, nats.Token(u.User.Username()))
	}
	nc, err := nats.Connect(strings.Join(backend.Hosts(u, "4222"), ","), opts...)
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		return nil, backend.Invalid("NATS refuses the user or the password: %w", err)
	case err != nil:
		return nil, err
	}
	d, err := newDriver(ctx, nc, o, nc.Close)
	if err != nil {
		nc.Close()
		return nil, err
	}
	return d, nil
}
