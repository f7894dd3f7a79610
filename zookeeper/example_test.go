package zookeeper_test

import (
	"context"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/zookeeper"
)

// hosts are the servers of Example.
var hosts = []string{"h1:2181", "h2:2181", "h3:2181"}

// The driver opens sessions of its own: how long one lives is how long its leases last.
func Example() {
	ctx := context.Background()
	// Or fencelock.Open(ctx, "zookeeper://h1:2181,h2:2181,h3:2181/prod").
	driver, err := zookeeper.New(hosts, &zookeeper.Options{Chroot: "/prod"})
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close() // ends the sessions

	err = locks.Do(ctx, "jobs/nightly", func(_ context.Context, lease *fencelock.Lease) error {
		fmt.Println("leads with token", lease.Token())
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

func TestExample(t *testing.T) {
	e := single(t)
	hosts = strings.Split(strings.TrimPrefix(e.URL(), "zookeeper://"), ",")
	Example()
	if ok, _, err := foreign(t, hosts...).Exists("/prod"); !ok || err != nil {
		t.Errorf("/prod: got %v, %v, want that it is there", ok, err)
	}
}
