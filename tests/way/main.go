// Command way locks a free name on Redis and writes which functions of this project that called:
//
//	go build -cover -covermode=atomic -coverpkg=github.com/fencelock/fencelock/... -o way ./tests/way
//	./way redis://localhost:6379/0 DIR && go tool covdata func -i DIR
package main

import (
	"context"
	"log"
	"os"
	"runtime/coverage"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/redis"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: way URL DIR")
	}
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()
	m := locks.Mutex("way")
	first, err := m.Lock(ctx) // what only a first call does is done
	if err == nil {
		err = first.Unlock(ctx)
	}
	if err != nil {
		log.Fatal(err)
	}
	if err := coverage.ClearCounters(); err != nil {
		log.Fatal(err)
	}
	lease, err := m.Lock(ctx)
	if err == nil {
		err = coverage.WriteCountersDir(os.Args[2])
	}
	if err == nil {
		err = coverage.WriteMetaDir(os.Args[2])
	}
	if err != nil {
		log.Fatal(err)
	}
	_ = lease.Unlock(ctx) // what was asked for is written
}
