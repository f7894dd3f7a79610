package file_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend/file"
)

// The programs of one machine that name the same directory exclude each other.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "locks") // in earnest one that nothing cleans
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	driver, err := file.New(dir) // fencelock.Open(ctx, "file://"+dir) is the same
	if err != nil {
		log.Fatal(err)
	}
	locks, err := fencelock.New(driver)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Close()

	err = locks.Do(ctx, "backup", func(ctx context.Context, lease *fencelock.Lease) error {
		info, err := locks.Inspect(ctx, "backup")
		fmt.Println("held:", info.Held, "with the token of the lease:", info.Token == lease.Token())
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// held: true with the token of the lease: true
}
