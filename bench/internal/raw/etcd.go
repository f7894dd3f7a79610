package raw

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/internal/tlsurl"
)

// etcd puts a key that must not be there, under one lease that all cycles share, and deletes it.
// A waiter sees the delete by a watch.
type etcd struct {
	at      Place
	client  *clientv3.Client
	session *concurrency.Session
	web     *http.Client
	urls    []string // of the metrics
}

func openEtcd(ctx context.Context, p Place) (Store, error) {
	secure, err := tlsurl.Config(p.URL.Scheme == "etcds", p.Query, "use etcds://")
	if err != nil {
		return nil, err
	}
	scheme, web := "http://", &http.Transport{}
	if secure != nil {
		scheme, web.TLSClientConfig = "https://", secure.Clone()
	}
	conf := clientv3.Config{TLS: secure, Logger: zap.NewNop(), DialTimeout: 2 * time.Second}
	if p.URL.User != nil {
		conf.Username = p.URL.User.Username()
		conf.Password, _ = p.URL.User.Password()
	}
	p.Prefix = strings.ReplaceAll(p.Prefix, "~", "~~") // as the driver writes it, for Wipe
	r := &etcd{at: p, web: &http.Client{Transport: web, Timeout: 5 * time.Second}}
	for _, h := range backend.Hosts(p.URL, "2379") {
		conf.Endpoints = append(conf.Endpoints, scheme+h)
		r.urls = append(r.urls, scheme+h+"/metrics")
	}
	if r.client, err = clientv3.New(conf); err != nil {
		return nil, backend.Unavailable(err)
	}
	granted, err := r.client.Grant(ctx, int64(ttl/time.Second))
	if err == nil {
		r.session, err = concurrency.NewSession(r.client, concurrency.WithLease(granted.ID))
	}
	if err != nil {
		_ = r.client.Close() // the first error is the one to report
		return nil, backend.Unavailable(err)
	}
	return r, nil
}

func (r *etcd) Mutex(_ context.Context, name string, waits bool) (measure.Mutex, error) {
	key := r.at.key(name)
	free := clientv3.Compare(clientv3.CreateRevision(key), "=", 0)
	put := clientv3.OpPut(key, "", clientv3.WithLease(r.session.Lease()))
	deletes := []clientv3.OpOption{clientv3.WithFilterPut(), clientv3.WithCreatedNotify()}
	var gone clientv3.WatchChan // from the first wait on
	return measure.Mutex{
		Lock: func(ctx context.Context) error {
			for {
				resp, err := r.client.Txn(ctx).If(free).Then(put).Commit()
				switch {
				case err != nil || resp.Succeeded:
					return err
				case !waits:
					return errTaken
				case gone == nil:
					gone = r.client.Watch(r.client.Ctx(), key, deletes...)
				}
				select {
				case <-gone:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		},
		Unlock: func(ctx context.Context) error { _, err := r.client.Delete(ctx, key); return err },
	}, nil
}

// Commands sums the messages that the members have received, by their metrics.
func (r *etcd) Commands(ctx context.Context) (int64, bool) {
	return Total(ctx, r.urls, func(ctx context.Context, url string) (int64, error) {
		return EtcdMessages(ctx, r.web, url)
	})
}

var etcdReceived = regexp.MustCompile(`(?m)^grpc_server_msg_received_total\{.*\} (\S+)$`)

// EtcdMessages returns how many messages the member with these metrics has received.
func EtcdMessages(ctx context.Context, web *http.Client, url string) (int64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := web.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && !etcdReceived.Match(text) {
		err = fmt.Errorf("%s tells no grpc_server_msg_received_total", resp.Status)
	}
	return SumOf(string(text), etcdReceived), err
}

func (r *etcd) Wipe(ctx context.Context) error {
	_, err := r.client.Delete(ctx, r.at.Prefix, clientv3.WithPrefix())
	if _, gone := r.client.Revoke(ctx, r.session.Lease()); err == nil {
		err = gone
	}
	return err
}

func (r *etcd) Close() error {
	r.session.Orphan()
	r.web.CloseIdleConnections()
	return r.client.Close()
}
