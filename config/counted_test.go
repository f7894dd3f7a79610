package config_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

// The scheme "counted" is somebody else's driver: counted://STORE is a client of a store in memory that all
// of this host have in common. Its opens and closes are counted. fencing=none makes it promise no tokens. A host
// with a port is a server, which must answer first.
func init() {
	backend.Register("counted", func(ctx context.Context, u *url.URL, q *backend.Query) (backend.Driver, error) {
		weak := q.String("fencing", "") == "none"
		if err := q.Err(); err != nil {
			return nil, err
		}
		if u.Port() != "" {
			if err := answers(ctx, u.Host); err != nil {
				return nil, err
			}
		}
		counting.Lock()
		defer counting.Unlock()
		store := counting.stores[u.Host]
		if store == nil {
			store, _ = memory.New()
			counting.stores[u.Host] = store
		}
		client, err := store.Client(q.Prefix())
		if err != nil {
			return nil, err
		}
		counting.opens[u.Host]++
		return &counted{client, u.Host, weak}, nil
	})
}

// answers reads a byte from a server.
func answers(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	_, err = conn.Read(make([]byte, 1))
	return errors.Join(ctx.Err(), err)
}

var counting = struct {
	sync.Mutex
	stores        map[string]*memory.Driver
	opens, closes map[string]int
	runs          int
}{stores: map[string]*memory.Driver{}, opens: map[string]int{}, closes: map[string]int{}}

type counted struct {
	*memory.Driver
	host string
	weak bool
}

func (d *counted) Traits() backend.Traits {
	t := d.Driver.Traits()
	if t.Name = "counted"; d.weak {
		t.Fencing = backend.NoFencing
	}
	return t
}

func (d *counted) Close() error {
	counting.Lock()
	defer counting.Unlock()
	counting.closes[d.host]++
	return d.Driver.Close()
}

// fresh returns a word for hosts that no other run of a test has used.
func fresh() string {
	counting.Lock()
	defer counting.Unlock()
	counting.runs++
	return fmt.Sprintf("run%d", counting.runs)
}

// counts returns how often a store was opened and closed.
func counts(host string) (opens, closes int) {
	counting.Lock()
	defer counting.Unlock()
	return counting.opens[host], counting.closes[host]
}
