// Command etcd-fencing adds to a balance in etcd under a lock, so that not even a
// holder that was stopped and overtaken can spoil it:
//
//	go run ./examples/etcd-fencing -endpoints localhost:2379 -account 7 -add 10
//
// The lock keeps programs from getting into each other's way. What makes the
// write safe is the guard: it lets no token through that is lower than one it has seen,
// in the same transaction as the read or the write.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/etcd"
)

func main() {
	endpoints := flag.String("endpoints", "localhost:2379", "addresses of etcd, separated by commas")
	account := flag.String("account", "7", "the account to add to")
	amount := flag.Int("add", 10, "how much to add")
	flag.Parse()
	if err := run(context.Background(), strings.Split(*endpoints, ","), *account, *amount); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, endpoints []string, account string, amount int) error {
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 5 * time.Second, DialKeepAliveTime: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	driver, err := etcd.New(client, nil)
	if err != nil {
		return err
	}
	locker, err := fencelock.New(driver, fencelock.WithTTL(10*time.Second))
	if err != nil {
		return err
	}
	defer locker.Close()
	guard, err := etcd.NewGuard(client, nil)
	if err != nil {
		return err
	}
	return locker.Do(ctx, "account/"+account, func(ctx context.Context, lease *fencelock.Lease) error {
		balance, err := add(ctx, guard, "account/"+account, lease.Token(), amount)
		var stale *fencelock.StaleError
		switch {
		case errors.As(err, &stale):
			return fmt.Errorf("overtaken by the holder of token %d: nothing was written", stale.Max)
		case err != nil:
			return err
		}
		fmt.Printf("token %d: the balance of account %s is %d\n", lease.Token(), account, balance)
		return nil
	})
}

// add reads the balance and writes the new one. Each access goes through the guard, the read too: a balance that was
// read without it might be on its way to being changed by the next holder.
func add(ctx context.Context, guard *etcd.Guard, account string, token fencelock.Token, amount int) (int, error) {
	key := "balance/" + account
	read, err := guard.Do(ctx, account, token, clientv3.OpGet(key))
	if err != nil {
		return 0, err
	}
	balance := 0
	if kvs := read.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
		if balance, err = strconv.Atoi(string(kvs[0].Value)); err != nil {
			return 0, err
		}
	}
	balance += amount
	_, err = guard.Do(ctx, account, token, clientv3.OpPut(key, strconv.Itoa(balance)))
	return balance, err
}
