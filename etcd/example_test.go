package etcd_test

import (
	"context"
	"log"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcd"
	"github.com/fencelock/fencelock/internal/servers"
)

// endpoints are those of Example's cluster.
var endpoints = []string{"localhost:2379"}

// The program locks through the client that it has. It writes in the transaction that checks the token: a holder that
// was overtaken writes nothing.
func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialKeepAliveTime: 2 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	driver, err := etcd.New(client, nil) // or fencelock.Open(ctx, "etcd://localhost:2379")
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() // leaves the client open
	guard, err := etcd.NewGuard(client, nil)
	if err != nil {
		log.Fatal(err)
	}

	err = locks.Do(ctx, "account/7", func(ctx context.Context, lease *fencelock.Lease) error {
		_, err := guard.Do(ctx, "account/7", lease.Token(), clientv3.OpPut("account/7/balance", "70"))
		return err // ErrStale: nothing was written, somebody has the lock since
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	e := servers.Etcd(t, servers.EtcdOptions{})
	endpoints = e.Addrs()
	Example()
	got, err := client(t, e).Get(t.Context(), "account/7/balance")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "70" {
		t.Errorf("the balance: got %v, %v, want 70", got, err)
	}
}
