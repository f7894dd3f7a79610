package leader_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/leaks"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/leader"
	_ "github.com/fencelock/fencelock/redis" // for redis://
)

// envCandidate makes the test binary a candidate on the store that it names.
const envCandidate = "FENCELOCK_TEST_CANDIDATE"

const ttl = 2 * time.Second

func TestMain(m *testing.M) {
	if url := os.Getenv(envCandidate); url != "" {
		stand(url)
		return
	}
	leaks.Main(m, 8, 5*time.Second)
}

// stand stands for election, and prints the token of each term.
func stand(url string) {
	ctx := context.Background()
	locks, err := fencelock.Open(ctx, url, fencelock.WithTTL(ttl))
	if err == nil {
		fmt.Println("stands")
		err = leader.Run(ctx, locks.Mutex("n"),
			leader.Callbacks{Lead: func(ctx context.Context, lease *fencelock.Lease) error {
				fmt.Println("leads", lease.Token())
				<-ctx.Done()
				return nil
			}})
	}
	fmt.Println("ends:", err)
}

// A candidate of a process that is killed is followed by the next one, within the TTL and a little.
func TestKilledLeader(t *testing.T) {
	t.Parallel()
	url := servers.Redis(t, servers.RedisOptions{}).URL()
	start := func() (*exec.Cmd, *bufio.Scanner) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), envCandidate+"="+url, "GORACE=atexit_sleep_ms=0")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		return cmd, bufio.NewScanner(out)
	}
	says := func(s *bufio.Scanner, what string) string {
		t.Helper()
		if !s.Scan() {
			t.Fatalf("it ended, want that it %s", what)
		}
		rest, ok := strings.CutPrefix(s.Text(), what)
		if !ok {
			t.Fatalf("it said %q, want that it %s", s.Text(), what)
		}
		return strings.TrimSpace(rest)
	}
	first, firstSays := start()
	says(firstSays, "stands")
	before, _ := strconv.ParseInt(says(firstSays, "leads"), 10, 64)
	_, secondSays := start()
	says(secondSays, "stands")
	killed := time.Now()
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	after, _ := strconv.ParseInt(says(secondSays, "leads"), 10, 64)
	if took := time.Since(killed); took > ttl+3*time.Second || before == 0 || after <= before {
		t.Errorf("the second leads after %v with token %d, the first did with %d; "+
			"want it within %v with a greater one", took, after, before, ttl+3*time.Second)
	}
}
