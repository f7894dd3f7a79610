package record_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/record"
	"github.com/fencelock/fencelock/internal/core"
)

// values is a record.KV in memory, whose requests a test can lose.
type values struct {
	mu      sync.Mutex
	all     map[string]record.Value
	watched map[string][]func(record.Value)
	version int
	epoch   uint64
	ahead   time.Duration // of the store's clock
	lag     time.Duration // that the next answer about it has

	gets, puts int
	keep       time.Duration          // of the last Put
	full       error                  // of a Put; nil: it is done
	read       func()                 // called after a Get
	before     func(key string)       // called before a Put
	lose       func(key string) error // the answer of a Put that was done
}

func newValues() *values {
	return &values{all: map[string]record.Value{}, watched: map[string][]func(record.Value){}}
}

func (v *values) Get(_ context.Context, key string) (record.Value, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gets++
	now := v.all[key]
	if v.read != nil {
		v.read()
	}
	return now, nil
}

func (v *values) Put(
	ctx context.Context, key string, data []byte, was string, keep time.Duration,
) (string, error) {
	if v.before != nil {
		v.before(key)
	}
	v.mu.Lock()
	v.puts++
	v.keep = keep
	if v.full != nil {
		v.mu.Unlock()
		return "", v.full
	}
	if v.all[key].Version != was {
		v.mu.Unlock()
		return "", record.ErrMoved
	}
	v.version++
	now := record.Value{Data: data, Version: strconv.Itoa(v.version), At: time.Now().Add(v.ahead)}
	v.all[key] = now
	watched := v.watched[key]
	v.mu.Unlock()
	for _, f := range watched {
		f(now)
	}
	if v.lose != nil {
		if err := v.lose(key); err != nil {
			return "", err
		}
	}
	return now.Version, ctx.Err()
}

func (v *values) Now(context.Context) (time.Time, error) {
	now := time.Now().Add(v.ahead)
	time.Sleep(v.lag)
	v.lag = 0
	return now, nil
}

func (v *values) Epoch() uint64 { return v.epoch }

func (v *values) Keys(_ context.Context, prefix string) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		for key := range v.all {
			if strings.HasPrefix(key, prefix) && !yield(key, nil) {
				return
			}
		}
	}
}

func (v *values) Watch(key string, f func(record.Value)) (func(), error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.watched[key] = append(v.watched[key], f)
	return func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.watched[key] = nil // one waiter at a time, in these tests
	}, nil
}

var traits = backend.Traits{
	Name: "values", Fencing: backend.Anchored, FIFO: true, Grace: true, DeadWaiter: 5 * time.Second,
	MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond, Revoked: time.Second,
}

const ttl = 10 * time.Second

type world struct {
	*testing.T
	kv *values
	d  caller
	n  int
}

func bubble(t *testing.T, fn func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{T: t, kv: newValues()}
		w.d = w.client()
		fn(w)
	})
}

// client is another process.
func (w *world) client() caller {
	d, err := record.New(w.kv, "test:", traits)
	if err != nil {
		w.Fatal(err)
	}
	return caller{d, core.Of(d)}
}

// caller is a driver, and how the engine calls it.
type caller struct {
	*record.Driver
	core.Caller
}

func (w *world) request(wait bool) *backend.Request {
	w.n++
	return &backend.Request{
		Name: "n", Nonce: fmt.Sprintf("%032d", w.n), TTL: ttl, Wait: wait, Lost: func(error) {},
	}
}

func (w *world) acquire(d caller, r *backend.Request) *core.Hold {
	w.Helper()
	g, err := d.Acquire(w.Context(), r)
	if err != nil {
		w.Fatalf("acquire: %v", err)
	}
	return &core.Hold{Request: r, Grant: g}
}

func (w *world) want(what string, got, want error) {
	w.Helper()
	if !errors.Is(got, want) {
		w.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func (w *world) refused(d caller, r *backend.Request, want error) {
	w.Helper()
	_, err := d.Acquire(w.Context(), r)
	w.want("acquire", err, want)
}

// TestFreeLockIsOneWrite, also of a name that was never locked before.
func TestFreeLockIsOneWrite(t *testing.T) {
	bubble(t, func(w *world) {
		w.want("release", w.d.Release(w.Context(), w.acquire(w.d, w.request(false))), nil)
		gets, puts := w.kv.gets, w.kv.puts
		h := w.acquire(w.d, w.request(false))
		w.want("release", w.d.Release(w.Context(), h), nil)
		if gets, puts := w.kv.gets-gets, w.kv.puts-puts; gets != 0 || puts != 2 {
			w.Errorf("a cycle took %d reads and %d writes, want 0 and 2", gets, puts)
		}
	})
}

// TestTokenAboveAFloorIsKept: a record stays until the clock, from which a name without one begins, has reached its
// token.
func TestTokenAboveAFloorIsKept(t *testing.T) {
	bubble(t, func(w *world) {
		const ahead = 10 * time.Minute
		r := w.request(false)
		r.Floor = backend.Token(time.Now().Add(ahead).UnixMicro())
		h := w.acquire(w.d, r)
		w.want("release", w.d.Release(w.Context(), h), nil)
		if w.kv.keep < ahead {
			w.Errorf("the record is kept for %v, want %v at least", w.kv.keep, ahead)
		}
	})
}

// TestFailedPlaceSaysWhy: a waiter whose place cannot be written hears why, and asks again soon.
func TestFailedPlaceSaysWhy(t *testing.T) {
	bubble(t, func(w *world) {
		w.acquire(w.client(), w.request(false))
		full := errors.New("no space is left")
		w.kv.full = full
		began := time.Now()
		_, err := w.d.Acquire(w.Context(), w.request(true))
		if err == nil || !strings.Contains(err.Error(), full.Error()) {
			w.Errorf("acquire: got %v, want %v", err, full)
		}
		if took := time.Since(began); took > 2*core.Patience {
			w.Errorf("it took %v", took)
		}
	})
}

// TestWhatIsKnownMayBeWrong: the write is refused then, and what the store has counts.
func TestWhatIsKnownMayBeWrong(t *testing.T) {
	bubble(t, func(w *world) {
		h := w.acquire(w.d, w.request(false))
		w.want("release", w.d.Release(w.Context(), h), nil)
		other := w.client()
		next := w.acquire(other, w.request(false))
		if next.Token <= h.Token {
			w.Errorf("token %d after %d", next.Token, h.Token)
		}
		w.refused(w.d, w.request(false), backend.ErrLocked)
		w.want("release by the first, again", w.d.Release(w.Context(), h), nil)
		w.want("renewal by the first", w.d.Renew(w.Context(), []*core.Hold{h})[0], backend.ErrLost)
		w.want("break", w.d.Break(w.Context(), "n"), nil)
		w.want("the broken one's look", other.Check(w.Context(), []*core.Hold{next})[0], backend.ErrLost)
		w.want("its release", other.Release(w.Context(), next), backend.ErrLost)
	})
}

// TestLostAnswer: a write that was done is found again, with its token.
func TestLostAnswer(t *testing.T) {
	bubble(t, func(w *world) {
		lost := 0
		w.kv.lose = func(string) error {
			if lost++; lost == 1 {
				return errors.New("the connection broke")
			}
			return nil
		}
		h := w.acquire(w.d, w.request(false))
		if lost != 2 {
			w.Errorf("got %d writes, want two", lost)
		}
		w.want("release", w.d.Release(w.Context(), h), nil)
		late := *h.Request // the first copy, from a process that knows nothing of the rest
		late.Claim = nil
		w.refused(w.client(), &late, backend.ErrLost)
	})
}

// TestAbandonedIsRefused, where a copy may come yet, and leaves nothing where none can.
func TestAbandonedIsRefused(t *testing.T) {
	bubble(t, func(w *world) {
		w.acquire(w.d, w.request(false))
		tried := w.request(false)
		w.refused(w.d, tried, backend.ErrLocked)
		puts := w.kv.puts
		w.want("abandon", w.d.Abandon(w.Context(), tried), nil)
		if w.kv.puts != puts {
			w.Error("a try that was answered was written down")
		}
		w.want("break", w.d.Break(w.Context(), "n"), nil)
		w.kv.before = func(string) { time.Sleep(time.Second) }
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		defer cancel()
		slow := w.request(false)
		_, err := w.d.Acquire(ctx, slow)
		w.want("a slow acquire", err, context.DeadlineExceeded)
		w.kv.before = nil
		w.want("abandon", w.d.Abandon(w.Context(), slow), nil)
		late := *slow
		late.Claim = nil
		w.refused(w.client(), &late, backend.ErrLost)
		w.acquire(w.d, w.request(false))
	})
}

// TestQueue: first come, first served; who is dead is passed over, and who is woken looks at once.
func TestQueue(t *testing.T) {
	bubble(t, func(w *world) {
		h := w.acquire(w.d, w.request(false))
		ctx, die := context.WithCancel(w.Context())
		dead := make(chan error)
		go func() { _, err := w.client().Acquire(ctx, w.request(true)); dead <- err }()
		synctest.Wait()
		type grant struct {
			at  time.Time
			err error
		}
		next := make(chan grant)
		other := w.client()
		go func() {
			_, err := other.Acquire(w.Context(), w.request(true))
			next <- grant{time.Now(), err}
		}()
		synctest.Wait()
		if i, err := w.d.Inspect(w.Context(), "n"); err != nil || i.Waiters != 2 {
			w.Errorf("got %+v, %v, want two waiters", i, err)
		}
		time.Sleep(3 * time.Second) // places are renewed
		die()
		<-dead // nobody abandons it
		w.want("release", w.d.Release(w.Context(), h), nil)
		began := time.Now()
		g := <-next
		w.want("the next", g.err, nil)
		if took := g.at.Sub(began); took < time.Second || took > 5*time.Second {
			w.Errorf("granted %v after the release, want it kept for the first one until it counts as dead", took)
		}
	})
}

// TestTimeIsTheStores: a client's own clock plays no part, and a change of the store's is noticed.
func TestTimeIsTheStores(t *testing.T) {
	bubble(t, func(w *world) {
		w.kv.ahead = -time.Hour
		w.acquire(w.d, w.request(false))
		time.Sleep(ttl - time.Millisecond)
		w.refused(w.client(), w.request(false), backend.ErrLocked)
		time.Sleep(2 * time.Millisecond)
		old := w.acquire(w.client(), w.request(false))
		w.kv.ahead = 0 // the store was replaced
		w.kv.epoch++
		if h := w.acquire(w.d, w.request(false)); h.Token < old.Token+time.Hour.Microseconds()/2 {
			w.Errorf("token %d after %d: the store's clock is an hour on", h.Token, old.Token)
		}
	})
}

// TestClockSetBack: a process that has not noticed yet does not take a lease that began since for one that is over.
func TestClockSetBack(t *testing.T) {
	bubble(t, func(w *world) {
		other := w.client()
		w.want("release", other.Release(w.Context(), w.acquire(other, w.request(false))), nil) // it knows the clock
		w.kv.ahead = -2 * ttl
		w.acquire(w.client(), w.request(false))
		w.refused(other, w.request(false), backend.ErrLocked)
	})
}

// TestSlowClock: a process whose answer about the store's clock was slow, and whose next one is not, does not end the
// lease of its own holder early, nor tells others of an earlier beginning.
func TestSlowClock(t *testing.T) {
	const lag = 600 * time.Millisecond
	bubble(t, func(w *world) {
		w.kv.lag = lag
		w.acquire(w.d, w.request(false))
		time.Sleep(ttl - lag/2) // the clock is asked for anew
		w.refused(w.d, w.request(false), backend.ErrLocked)
	})
	bubble(t, func(w *world) {
		w.kv.lag = lag
		w.acquire(w.d, w.request(false))
		time.Sleep(ttl / 2)
		ctx, stop := context.WithCancel(w.Context())
		waited := make(chan error)
		go func() { _, err := w.d.Acquire(ctx, w.request(true)); waited <- err }()
		synctest.Wait()
		if i, err := w.client().Inspect(w.Context(), "n"); err != nil || i.Waiters != 1 || i.ExpiresIn != ttl/2 {
			w.Errorf("got %+v, %v, want a waiter, and %v that are left", i, err, ttl/2)
		}
		stop()
		w.want("the wait", <-waited, context.Canceled)
	})
}

// TestLostStore: a store that has lost its data may give versions again. A holder of before does not
// overwrite the next one.
func TestLostStore(t *testing.T) {
	bubble(t, func(w *world) {
		h := w.acquire(w.d, w.request(false))
		w.kv.all, w.kv.version = map[string]record.Value{}, 0
		w.kv.epoch++
		other := w.client()
		next := w.acquire(other, w.request(false))
		w.want("renewal of before", w.d.Renew(w.Context(), []*core.Hold{h})[0], backend.ErrLost)
		w.want("release of before", w.d.Release(w.Context(), h), backend.ErrLost)
		w.want("the next one's renewal", other.Renew(w.Context(), []*core.Hold{next})[0], nil)
	})
}

// TestLostStoreBetweenReadAndWrite: what was read before the loss is not written on, though the
// store gives the same versions again.
func TestLostStoreBetweenReadAndWrite(t *testing.T) {
	bubble(t, func(w *world) {
		h := w.acquire(w.d, w.request(false))
		other := w.client()
		var next *core.Hold
		w.kv.read = func() {
			w.kv.read = nil
			w.kv.mu.Unlock()
			defer w.kv.mu.Lock()
			w.kv.all, w.kv.version = map[string]record.Value{}, 0
			w.kv.epoch++
			next = w.acquire(other, w.request(false))
		}
		forgetful := w.client() // it has to read
		got := forgetful.Renew(w.Context(), []*core.Hold{h})[0]
		w.want("renewal of before", got, backend.ErrLost)
		w.want("the next one's renewal", other.Renew(w.Context(), []*core.Hold{next})[0], nil)
	})
}

// TestForeignValues are ErrInvalid, and never a free lock.
func TestForeignValues(t *testing.T) {
	for _, v := range []string{"x", `{"token":-1}`, `{"token":1,"extra":1}`, `{}{}`, `{"token":1}}x`, `{"token":1}]`} {
		bubble(t, func(w *world) {
			w.want("release", w.d.Release(w.Context(), w.acquire(w.d, w.request(false))), nil)
			for key := range w.kv.all {
				w.kv.all[key] = record.Value{Data: []byte(v), Version: "foreign", At: time.Now()}
			}
			w.refused(w.d, w.request(false), backend.ErrInvalid)
			_, err := w.d.Inspect(w.Context(), "n")
			w.want("inspect", err, backend.ErrInvalid)
		})
	}
}
