// The program http-fencing shows what a fencing token is for. A worker takes a
// lock, is held up for longer than its lease, and then writes; meanwhile another worker has taken
// over. The resource, a page behind HTTP, refuses the late write.
//
//	go run ./examples/http-fencing [URL of a backend]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/fence"
)

func main() {
	backend := "memory://"
	if len(os.Args) > 1 {
		backend = os.Args[1]
	}
	if err := run(context.Background(), backend); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, backend string) error {
	page, stop, err := serve()
	if err != nil {
		return err
	}
	defer stop()
	locks, err := fencelock.Open(ctx, backend)
	if err != nil {
		return err
	}
	defer locks.Close()
	const name = "examples/report"

	// The first worker is held up: its lease is not renewed, and ends while it works.
	first, err := locks.Mutex(name, fencelock.WithTTL(2*time.Second), fencelock.WithManualRenew()).Lock(ctx)
	if err != nil {
		return err
	}
	if err := write(ctx, page, "draft of the first", first.Token()); err != nil {
		return err
	}

	second, err := locks.Mutex(name).Lock(ctx) // waits for the end of that lease
	if err != nil {
		return err
	}
	if err := write(ctx, page, "report of the second", second.Token()); err != nil {
		return err
	}

	// The first goes on, and has not looked at its lease.
	err = write(ctx, page, "late write of the first", first.Token())
	if !errors.Is(err, fencelock.ErrStale) {
		return fmt.Errorf("the late write: got %w, want it refused", err)
	}
	fmt.Println("refused:", err)
	return second.Unlock(ctx)
}

// serve is the resource: it keeps the last text that was written.
func serve() (url string, stop func(), err error) {
	text := "" // only the requests that the guard lets through, one at a time, touch it
	page := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				http.Error(w, "the text could not be read", http.StatusBadRequest)
				return
			}
			text = string(body)
		}
		fmt.Fprint(w, text)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	s := &http.Server{Handler: fence.Handler(&fence.Memory{}, nil, page), ReadHeaderTimeout: 5 * time.Second}
	go func() { _ = s.Serve(l) }() // until Close
	return "http://" + l.Addr().String() + "/report", func() { _ = s.Close() }, nil
}

// write puts a text under a token.
func write(ctx context.Context, url, text string, t fencelock.Token) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, url, strings.NewReader(text))
	if err != nil {
		return err
	}
	fence.Set(r, t)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := fence.Response(res); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("PUT %s: %s", url, res.Status)
	}
	fmt.Printf("written with token %d: %s\n", t, text)
	return nil
}
