// Command etcd-held writes to etcd only while it holds a lock of the same etcd: the
// program's own transaction compares that the lock is still held, so that a write is refused from the
// moment at which the lock is lost, whether or not the program has noticed.
//
//	go run ./examples/etcd-held -url 'etcd://localhost:2379' -leader a
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcd"
)

func main() {
	url := flag.String("url", "etcd://localhost:2379", "where the lock is")
	name := flag.String("leader", "a", "the name of this leader")
	flag.Parse()
	if err := run(context.Background(), *url, *name); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, url, name string) error {
	locker, err := fencelock.Open(ctx, url)
	if err != nil {
		return err
	}
	defer locker.Close()
	hosts := strings.Split(strings.TrimPrefix(url, "etcd://"), ",")
	client, err := clientv3.New(clientv3.Config{Endpoints: hosts, DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	return locker.Do(ctx, "leader", func(ctx context.Context, lease *fencelock.Lease) error {
		held, ok := etcd.Held(lease)
		if !ok {
			return errors.New("the lock is not in etcd")
		}
		resp, err := client.Txn(ctx).If(held).Then(clientv3.OpPut("leader", name)).Commit()
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return fencelock.ErrLost
		}
		fmt.Printf("%s leads with token %d\n", name, lease.Token())
		return nil
	})
}
