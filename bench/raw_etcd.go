package bench

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// rawEtcd puts a key that must not be there, under one lease that all cycles share, and deletes it. It hands over by a watch.
type rawEtcd struct {
	p      place
	client *clientv3.Client
	lease  clientv3.LeaseID
	end    context.CancelFunc
	web    *http.Client
	urls   []string // of the metrics
}

func openRawEtcd(ctx context.Context, p place) (raw, error) {
	secure, err := tlsurl.Config(p.u.Scheme == "etcds", p.q, "use etcds://")
	if err != nil {
		return nil, err
	}
	scheme := "http://"
	if secure != nil {
		scheme = "https://"
	}
	conf := clientv3.Config{TLS: secure, Logger: zap.NewNop(), DialTimeout: 2 * time.Second}
	if p.u.User != nil {
		conf.Username = p.u.User.Username()
		conf.Password, _ = p.u.User.Password()
	}
	r := &rawEtcd{p: p, web: &http.Client{Transport: &http.Transport{TLSClientConfig: clone(secure)}, Timeout: 5 * time.Second}}
	for _, h := range backend.Hosts(p.u, "2379") {
		conf.Endpoints = append(conf.Endpoints, scheme+h)
		r.urls = append(r.urls, scheme+h+"/metrics")
	}
	if r.client, err = clientv3.New(conf); err != nil {
		return nil, backend.Unavailable(err)
	}
	granted, err := r.client.Grant(ctx, int64(rawTTL/time.Second))
	if err != nil {
		_ = r.client.Close()
		return nil, backend.Unavailable(err)
	}
	r.lease = granted.ID
	keep, end := context.WithCancel(context.WithoutCancel(ctx))
	r.end = end
	answers, err := r.client.KeepAlive(keep, r.lease)
	if err != nil {
		_ = r.close()
		return nil, backend.Unavailable(err)
	}
	go func() {
		for range answers { // close ends it
		}
	}()
	return r, nil
}

func clone(c *tls.Config) *tls.Config {
	if c == nil {
		return nil
	}
	return c.Clone()
}

func (r *rawEtcd) cycle(name string) (cycle, error) {
	key := r.p.key(name)
	free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, "", clientv3.WithLease(r.lease))
	return func(ctx context.Context, held func()) error {
		resp, err := r.client.Txn(ctx).If(free).Then(put).Commit()
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return errTaken
		}
		held()
		_, err = r.client.Delete(ctx, key)
		return err
	}, nil
}

func (r *rawEtcd) relay(ctx context.Context, name string) (*relay, error) {
	key := r.p.key(name)
	ctx, cancel := context.WithCancel(ctx)
	events := r.client.Watch(clientv3.WithRequireLeader(ctx), key, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	if first := <-events; first.Err() != nil || !first.Created {
		cancel()
		return nil, errors.Join(errors.New("the raw watch was not opened"), first.Err(), ctx.Err())
	}
	return &relay{
		hold: func(ctx context.Context) error {
			_, err := r.client.Put(ctx, key, "", clientv3.WithLease(r.lease))
			return err
		},
		free: func(ctx context.Context) error { _, err := r.client.Delete(ctx, key); return err },
		wait: func(ctx context.Context) error {
			select {
			case e, ok := <-events:
				if !ok {
					return errors.New("the raw watch has ended")
				}
				return e.Err()
			case <-ctx.Done():
				return ctx.Err()
			}
		},
		shut: cancel,
	}, nil
}

// commands sums the messages that the members have received, which their metrics tell.
func (r *rawEtcd) commands(ctx context.Context) (int64, bool) {
	var sum float64
	for _, u := range r.urls {
		n, err := r.received(ctx, u)
		if err != nil {
			return 0, false
		}
		sum += n
	}
	return int64(sum), true
}

func (r *rawEtcd) received(ctx context.Context, url string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := r.web.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var sum float64
	seen := false
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), "grpc_server_msg_received_total{") {
			continue
		}
		_, value, _ := strings.Cut(lines.Text(), "} ")
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum, seen = sum+n, true
	}
	if !seen {
		return 0, fmt.Errorf("%s tells no grpc_server_msg_received_total", resp.Status)
	}
	return sum, lines.Err()
}

func (r *rawEtcd) wipe(ctx context.Context) error {
	_, err := r.client.Delete(ctx, r.p.prefix, clientv3.WithPrefix())
	if _, gone := r.client.Revoke(ctx, r.lease); err == nil {
		err = gone
	}
	return err
}

func (r *rawEtcd) close() error {
	if r.end != nil {
		r.end()
	}
	r.web.CloseIdleConnections()
	return r.client.Close()
}
