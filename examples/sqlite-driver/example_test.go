package sqlitekv_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/examples/sqlite-driver"
)

// Programs of one machine share a file.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "locks")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := fencelock.Open(ctx, "sqlite://"+filepath.Join(dir, "locks.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	err = l.Do(ctx, "report", func(context.Context, *fencelock.Lease) error {
		fmt.Println("only one program is here")
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output: only one program is here
}
