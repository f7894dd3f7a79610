package locks

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// The holder unlocks while the break is under way, and a waiter follows. A yes was about the first. With --yes nobody
// was asked, the next one is broken, and what is said is about that one.
func TestBreakSparesTheNextHolder(t *testing.T) {
	for _, yes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			d, err := memory.New()
			if err != nil {
				t.Fatal(err)
			}
			client := func() *fencelock.Locker {
				c, err := d.Client(backend.DefaultPrefix)
				if err != nil {
					t.Fatal(err)
				}
				l, err := fencelock.New(c)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = l.Close() })
				return l
			}
			first, err := client().Mutex("n").Lock(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			waiter, waits := client(), make(chan *fencelock.Lease, 1)
			go func() {
				le, err := waiter.Mutex("n", fencelock.WithOwner("next")).Lock(t.Context())
				if err != nil {
					t.Error(err)
				}
				waits <- le
			}()
			synctest.Wait()
			var out bytes.Buffer
			a := &cli.App{In: strings.NewReader("y\n"), Out: &out, Err: io.Discard}
			b := breaking{a: a, name: "n", yes: yes}
			time.AfterFunc(30*time.Millisecond, func() {
				if err := first.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
			err = b.free(t.Context(), client())
			next := <-waits
			time.Sleep(waiter.Traits().Revoked)
			want := ""
			if yes {
				want = fmt.Sprintf("broke n: it was held by next, token %d\n", next.Token())
			}
			if out.String() != want || (err == nil) != yes || err != nil && a.Code(err) != cli.ExitNo {
				t.Errorf("yes %v: got %q, %v, want %q", yes, out.String(), err, want)
			}
			if broken := next.Err() != nil; broken != yes {
				t.Errorf("yes %v: the next holder: %v", yes, next.Err())
			}
		})
	}
}
