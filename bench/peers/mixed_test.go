package peers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/internal/servers"
)

// envMixed makes this program a process of a mixed fleet: library, address, prefix.
const envMixed = "FENCELOCK_MIXED"

const (
	mixedTTL   = 2 * time.Second
	mixedKey   = "report" // the lock
	mixedCount = "count"  // what it guards: read, and written with one more
)

// theirs is a hold of a library in a mixed fleet.
type theirs struct {
	renew, free func(context.Context) error // renew nil: the library renews by itself
}

// obtains returns how a library takes the lock.
func obtains(library, addr, prefix string) (func(context.Context) (theirs, error), error) {
	c := goredisClient(addr)
	switch library {
	case "redsync":
		rs := redsync.New(redsyncpool.NewPool(c))
		return func(ctx context.Context) (theirs, error) {
			m := rs.NewMutex(mixedKey, redsync.WithExpiry(mixedTTL), redsync.WithTries(1000),
				redsync.WithRetryDelay(10*time.Millisecond))
			return theirs{
				func(ctx context.Context) error { _, err := m.ExtendContext(ctx); return err },
				func(ctx context.Context) error { _, err := m.UnlockContext(ctx); return err },
			}, m.LockContext(ctx)
		}, nil
	case "redislock":
		return func(ctx context.Context) (theirs, error) {
			l, err := redislock.Obtain(ctx, c, mixedKey, mixedTTL, &redislock.Options{
				RetryStrategy: redislock.LinearBackoff(10 * time.Millisecond),
			})
			return theirs{
				func(ctx context.Context) error { return l.Refresh(ctx, mixedTTL, nil) },
				func(ctx context.Context) error { return l.Release(ctx) },
			}, err
		}, nil
	case "rueidislock":
		l, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true,
			KeyValidity: mixedTTL,
		})
		return func(ctx context.Context) (theirs, error) {
			held, cancel, err := l.WithContext(ctx, mixedKey)
			return theirs{free: func(context.Context) error {
				defer cancel()
				return held.Err()
			}}, err
		}, err
	case "Redisson":
		return func(ctx context.Context) (theirs, error) { return likeRedisson(ctx, c) }, nil
	default:
		l, err := fencelock.Open(context.Background(), "redis://"+addr+"?prefix="+prefix, fencelock.WithTTL(mixedTTL))
		return func(ctx context.Context) (theirs, error) {
			le, err := l.Mutex(mixedKey).Lock(ctx)
			return theirs{free: func(ctx context.Context) error { return le.Unlock(ctx) }}, err
		}, err
	}
}

// likeRedisson takes the lock as Redisson's RLock is documented to: a hash of one field, for the
// thread of a client, that counts how often it has entered.
func likeRedisson(ctx context.Context, c *goredis.Client) (theirs, error) {
	me := fmt.Sprintf("%08x-%04x-%04x-%04x-%012x:1", rand.Uint32(), rand.N(1<<16), rand.N(1<<16),
		rand.N(1<<16), rand.N(1<<48))
	ms := mixedTTL.Milliseconds()
	// Where a string is there, HEXISTS is an error, which its caller gets.
	try := goredis.NewScript(`if redis.call('EXISTS', KEYS[1]) == 0 or redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
		redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
		redis.call('PEXPIRE', KEYS[1], ARGV[2])
		return -10
	end
	return redis.call('PTTL', KEYS[1])`)
	ours := `if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end `
	renew := goredis.NewScript(ours + `return redis.call('PEXPIRE', KEYS[1], ARGV[2])`)
	free := goredis.NewScript(ours + `return redis.call('DEL', KEYS[1])`)
	do := func(s *goredis.Script) func(context.Context) error {
		return func(ctx context.Context) error {
			n, err := s.Run(ctx, c, []string{mixedKey}, me, ms).Int()
			if err == nil && n == 0 {
				err = errors.New("the lock is not ours")
			}
			return err
		}
	}
	for {
		left, err := try.Run(ctx, c, []string{mixedKey}, me, ms).Int()
		if err != nil && !strings.HasPrefix(err.Error(), "WRONGTYPE") {
			return theirs{}, err
		}
		if err == nil && left == -10 {
			return theirs{do(renew), do(free)}, nil
		}
		select {
		case <-ctx.Done():
			return theirs{}, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// mixedChild adds to the count under the lock until its input ends, and says each number that it
// has written.
func mixedChild() {
	args := strings.Split(os.Getenv(envMixed), " ")
	if len(args) != 3 {
		return
	}
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, args[0], err)
		os.Exit(1)
	}
	obtain, err := obtains(args[0], args[1], args[2])
	if err != nil {
		fail(err)
	}
	var over atomic.Bool
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); over.Store(true) }()
	c, ctx := goredisClient(args[1]), context.Background()
	for !over.Load() {
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		h, err := obtain(limited)
		if errors.Is(err, context.DeadlineExceeded) && args[0] == "rueidislock" {
			cancel()
			continue // it does not hear of each release of others
		}
		if err != nil {
			fail(fmt.Errorf("taking the lock: %w", err))
		}
		asked = later(asked, time.Now().Add(-100*time.Millisecond)) // a wait ends with a request
		work := time.Now().Add(rand.N(20 * time.Millisecond))
		if rand.N(20) == 0 {
			work = time.Now().Add(mixedTTL + mixedTTL/4) // renewed
		}
		n, err := c.Get(ctx, mixedCount).Int()
		if err != nil {
			fail(err)
		}
		for left := time.Until(work); left > 0; left = time.Until(work) {
			time.Sleep(min(left, mixedTTL/4))
			if now := time.Now(); h.renew != nil && now.Before(work) {
				if err := h.renew(ctx); err != nil {
					fail(fmt.Errorf("renewing: %w", err))
				}
				asked = now
			}
		}
		if h.renew != nil && time.Since(asked) > mixedTTL/2 {
			cancel()
			continue // a program that looks at the clock does not trust its lock any more
		}
		if err := c.Set(ctx, mixedCount, n+1, 0).Err(); err != nil {
			fail(err)
		}
		fmt.Println(n + 1)
		if err := h.free(ctx); err != nil {
			fail(fmt.Errorf("releasing: %w", err))
		}
		cancel()
		time.Sleep(rand.N(200 * time.Millisecond)) // between two jobs, so that both libraries come in
	}
	os.Exit(0)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// A process of a mixed fleet, and the numbers that it has said.
type mixed struct {
	library string
	cmd     *exec.Cmd
	in      io.Closer
	said    chan []int // all, when it has ended
	errs    *strings.Builder
}

func startMixed(t *testing.T, library, addr, prefix string) *mixed {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	m := &mixed{library: library, cmd: exec.Command(self), said: make(chan []int, 1), errs: &strings.Builder{}}
	m.cmd.Env = append(os.Environ(), envMixed+"="+library+" "+addr+" "+prefix)
	m.cmd.Stderr = m.errs
	in, err1 := m.cmd.StdinPipe()
	out, err2 := m.cmd.StdoutPipe()
	if err := errors.Join(err1, err2, m.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	m.in = in
	go func() {
		var said []int
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				said = append(said, n)
			}
		}
		m.said <- said
	}()
	return m
}

// Old and new programs on one key, some of them killed while they hold it, some that renew it for
// longer than it lasts: no number is written twice, and none is lost.
func TestMixedFleets(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a minute")
	}
	for _, library := range []string{"redsync", "redislock", "rueidislock", "Redisson"} {
		t.Run(library, func(t *testing.T) {
			t.Parallel()
			s := servers.Redis(t, servers.RedisOptions{})
			prefix := ""
			if library == "rueidislock" {
				prefix = "rueidislock:0:"
			}
			c := goredisClient(s.Addr())
			t.Cleanup(func() { _ = c.Close() })
			if err := c.Set(t.Context(), mixedCount, 0, 0).Err(); err != nil {
				t.Fatal(err)
			}
			fleet := make([]*mixed, 4)
			for i := range fleet {
				fleet[i] = startMixed(t, [2]string{library, "fencelock"}[i%2], s.Addr(), prefix)
			}
			t.Cleanup(func() {
				for _, m := range fleet {
					_ = m.cmd.Process.Kill()
				}
			})
			said := map[string][]int{}
			end := func(m *mixed) {
				said[m.library] = append(said[m.library], <-m.said...)
				err := m.cmd.Wait()
				if text := m.errs.String(); text != "" || err != nil && !strings.Contains(err.Error(), "killed") {
					t.Errorf("%s: %v %s", m.library, err, text)
				}
			}
			const kills = 6
			for i := range kills {
				time.Sleep(2 * time.Second)
				n := i % len(fleet)
				_ = fleet[n].cmd.Process.Kill()
				end(fleet[n])
				fleet[n] = startMixed(t, fleet[n].library, s.Addr(), prefix)
			}
			time.Sleep(2 * time.Second)
			for _, m := range fleet {
				_ = m.in.Close()
			}
			for _, m := range fleet {
				end(m)
			}
			count, err := c.Get(t.Context(), mixedCount).Int()
			if err != nil {
				t.Fatal(err)
			}
			all, seen := 0, map[int]bool{}
			for from, numbers := range said {
				all += len(numbers)
				for _, n := range numbers {
					if seen[n] {
						t.Errorf("%d was written twice", n)
					}
					seen[n] = true
				}
				t.Logf("%s wrote %d numbers", from, len(numbers))
				if len(numbers) == 0 {
					t.Errorf("%s wrote nothing", from)
				}
			}
			if count < all || count > all+kills {
				t.Errorf("the count is %d after %d increments and %d kills", count, all, kills)
			}
		})
	}
}
