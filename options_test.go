package fencelock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/memory"
)

func TestBadOptions(t *testing.T) {
	const year = 365 * 24 * time.Hour
	long := strings.Repeat("x", 513)
	tests := map[string]struct {
		opt  fencelock.Option
		says []string // what the message must have
	}{
		"TTL zero":             {fencelock.WithTTL(0), []string{"WithTTL", "0s"}},
		"TTL negative":         {fencelock.WithTTL(-time.Second), []string{"WithTTL", "-1s"}},
		"TTL too long":         {fencelock.WithTTL(year + 1), []string{"WithTTL", "8760h"}},
		"TTL below MinTTL":     {fencelock.WithTTL(49 * time.Millisecond), []string{"49ms", "50ms", "memory"}},
		"max hold zero":        {fencelock.WithMaxHold(0), []string{"WithMaxHold"}},
		"max hold negative":    {fencelock.WithMaxHold(-1), []string{"WithMaxHold"}},
		"max hold too long":    {fencelock.WithMaxHold(year + 1), []string{"WithMaxHold"}},
		"grace negative":       {fencelock.WithGrace(-1), []string{"WithGrace"}},
		"grace too long":       {fencelock.WithGrace(year + 1), []string{"WithGrace"}},
		"owner too long":       {fencelock.WithOwner(long), []string{"owner", "513", "512"}},
		"owner with NUL":       {fencelock.WithOwner("a\x00b"), []string{"owner", "NUL"}},
		"owner not UTF-8":      {fencelock.WithOwner("\xff"), []string{"owner", "UTF-8"}},
		"floor negative":       {fencelock.WithFloor(-1), []string{"WithFloor(-1)"}},
		"floor too great":      {fencelock.WithFloor(1 << 53), []string{"WithFloor"}},
		"floor leaves no room": {fencelock.WithFloor(1<<53 - 1), []string{"WithFloor"}},
		"nil":                  {nil, []string{"nil"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			d := newFake(t)
			check := func(what string, err error) {
				wantErr(t, what, err, fencelock.ErrInvalid)
				for _, s := range tt.says {
					if err == nil || !strings.Contains(err.Error(), s) {
						t.Errorf("%s: got %v, want it to say %q", what, err, s)
					}
				}
			}
			_, err := fencelock.New(d, tt.opt)
			check("New", err)
			_, err = fencelock.Open(t.Context(), "memory://", tt.opt)
			check("Open", err)
			l := open(t, d)
			m := l.Mutex("n", tt.opt)
			_, err = m.Lock(t.Context())
			check("Lock", err)
			_, err = m.TryLock(t.Context())
			check("TryLock", err)
			check("Do", l.Do(t.Context(), "n", nil, tt.opt))
			if got := d.count(); got != 0 {
				t.Errorf("got %d calls of the driver, want none", got)
			}
			unlock(t, lock(t, l.Mutex("n"))) // the Locker is as it was
		})
	}
}

func TestGoodOptions(t *testing.T) {
	tests := map[string]fencelock.Option{
		"the shortest TTL": fencelock.WithTTL(50 * time.Millisecond),
		"the longest TTL":  fencelock.WithTTL(365 * 24 * time.Hour),
		"no grace":         fencelock.WithGrace(0),
		"an empty owner":   fencelock.WithOwner(""),
		"a long owner":     fencelock.WithOwner(strings.Repeat("x", 512)),
		"no floor":         fencelock.WithFloor(0),
		"a brief max hold": fencelock.WithMaxHold(time.Hour),
	}
	for name, opt := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, d *fake) {
				unlock(t, lock(t, open(t, d, opt).Mutex("n")))
				unlock(t, lock(t, open(t, newFake(t)).Mutex("n", opt)))
			})
		})
	}
}

// A TTL of which a margin takes more than half is refused, whatever the driver's MinTTL.
func TestTTLOfTwoMargins(t *testing.T) {
	for margin, least := range map[time.Duration]time.Duration{0: 40 * time.Millisecond, time.Second: 2 * time.Second} {
		d := newFake(t)
		d.traits = func(tr *backend.Traits) { tr.MinTTL, tr.Margin = 0, margin }
		_, err := fencelock.New(d, fencelock.WithTTL(least-1))
		wantErr(t, "a TTL just below "+least.String(), err, fencelock.ErrInvalid)
		open(t, d, fencelock.WithTTL(least))
	}
}

func TestOptionsOfALockerOnly(t *testing.T) {
	for name, opt := range map[string]fencelock.Option{
		"WithObserver": fencelock.WithObserver(&record{}),
		"Require":      fencelock.Require(fencelock.Need{}),
	} {
		m := open(t, newFake(t)).Mutex("n", opt)
		for what, acquire := range map[string]func(context.Context) (*fencelock.Lease, error){
			"lock": m.Lock, "trylock": m.TryLock,
		} {
			_, err := acquire(t.Context())
			wantErr(t, name+" of a Mutex: "+what, err, fencelock.ErrInvalid)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("got %v, want it to name %s", err, name)
			}
		}
	}
	_, err := fencelock.New(newFake(t), fencelock.WithObserver(nil))
	wantErr(t, "WithObserver(nil)", err, fencelock.ErrInvalid)
}

func TestGraceWhereTheStoreCannot(t *testing.T) {
	d := newFake(t)
	d.traits = func(tr *backend.Traits) { tr.Name, tr.Grace = "stone", false }
	_, err := fencelock.New(d, fencelock.WithGrace(time.Second))
	wantErr(t, "New", err, fencelock.ErrUnsupported)
	l := open(t, d, fencelock.WithGrace(0))
	_, err = l.Mutex("n", fencelock.WithGrace(time.Second)).Lock(t.Context())
	wantErr(t, "Lock", err, fencelock.ErrUnsupported)
	if err == nil || !strings.Contains(err.Error(), "stone") || !strings.Contains(err.Error(), "WithGrace") {
		t.Errorf("got %v, want it to name the backend and the option", err)
	}
}

func TestOptionsOfAMutexWin(t *testing.T) {
	bubble(t, func(t *testing.T, d *fake) {
		l := open(t, d, fencelock.WithOwner("locker"), fencelock.WithManualRenew())
		plain, own := l.Mutex("a"), l.Mutex("b", fencelock.WithOwner("mutex"), fencelock.WithTTL(time.Minute))
		for want, m := range map[string]fencelock.Mutex{"locker": plain, "mutex": own} {
			if got := lock(t, m).Owner(); got != want {
				t.Errorf("owner: got %q, want %q", got, want)
			}
		}
		start := time.Now()
		le := lock(t, l.Mutex("c", fencelock.WithTTL(time.Minute)))
		if got, want := le.Deadline().Sub(start), 58800*time.Millisecond; got != want {
			t.Errorf("deadline: got %v, want %v", got, want)
		}
		if got := lock(t, l.Mutex("d")).Deadline().Sub(start); got != trusted {
			t.Errorf("deadline with the Locker's TTL: got %v, want %v", got, trusted)
		}
	})
}

// What a Locker has is switched off for one Mutex, and for that one alone.
func TestOptionsSwitchedOff(t *testing.T) {
	const grace = 3 * time.Second
	bubble(t, func(t *testing.T, d *fake) {
		const floor = 7
		asked := map[string]*backend.Request{}
		d.watch = func(r *backend.Request) { asked[r.Name] = r }
		l := open(t, d, fencelock.WithManualRenew(), fencelock.WithMaxHold(2*ttl),
			fencelock.WithReentrancy(), fencelock.WithGrace(grace), fencelock.WithFloor(floor))
		plain := lock(t, l.Mutex("plain"))
		other := l.Mutex("other", fencelock.WithoutManualRenew(), fencelock.WithoutMaxHold(),
			fencelock.WithoutReentrancy(), fencelock.WithGrace(0), fencelock.WithFloor(0))
		le := lock(t, other)
		_, err := other.Lock(carry(t, t.Context(), le))
		wantErr(t, "lock again without re-entrancy", err, fencelock.ErrDeadlock)
		again, err := l.Mutex("plain").Lock(carry(t, t.Context(), plain))
		if err != nil {
			t.Fatalf("lock again with re-entrancy: %v", err)
		}
		unlock(t, again)
		if r := asked["plain"]; r.Grace != grace || r.Floor != floor {
			t.Errorf("asked for %+v, want the Locker's grace and floor", r)
		}
		if r := asked["other"]; r.Grace != 0 || r.Floor != 0 || !r.Auto {
			t.Errorf("asked for %+v, want no grace and no floor", r)
		}
		renewed := lock(t, l.Mutex("renewed", fencelock.WithoutManualRenew()))
		time.Sleep(ttl)
		wantLost(t, "renewed by hand", plain, fencelock.Expired)
		wantHeld(t, "renewed", renewed)
		time.Sleep(5 * ttl)
		wantLost(t, "renewed, with a bound", renewed, fencelock.MaxHold)
		wantHeld(t, "renewed, without a bound", le)
	})
}

func TestRequire(t *testing.T) {
	tests := map[string]struct {
		need fencelock.Need
		says []string
	}{
		"fencing":       {fencelock.Need{Fencing: fencelock.Durable}, []string{"Fencing durable"}},
		"clock":         {fencelock.Need{ClockFree: true}, []string{"ClockFree"}},
		"node":          {fencelock.Need{SurvivesNode: true}, []string{"SurvivesNode"}},
		"transactional": {fencelock.Need{Transactional: true}, []string{"Transactional"}},
		"TTL":           {fencelock.Need{TTL: 10 * time.Millisecond}, []string{"TTL 10ms"}},
		"several": {
			fencelock.Need{ClockFree: true, Transactional: true, FIFO: true},
			[]string{"ClockFree", "Transactional"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := fencelock.New(newFake(t), fencelock.Require(fencelock.Need{}), fencelock.Require(tt.need))
			wantErr(t, "New", err, fencelock.ErrUnsupported)
			_, err = fencelock.New(newFake(t), fencelock.Require(tt.need), fencelock.Require(fencelock.Need{}))
			wantErr(t, "New, with a need more", err, fencelock.ErrUnsupported)
			_, err = fencelock.Open(t.Context(), "memory://", fencelock.Require(tt.need))
			wantErr(t, "Open", err, fencelock.ErrUnsupported)
			for _, s := range append(tt.says, "memory") {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("got %v, want it to say %q", err, s)
				}
			}
		})
	}
}

func TestRequireNamesWhoHasIt(t *testing.T) {
	d := newFake(t)
	d.traits = func(tr *backend.Traits) { *tr = backend.Traits{Name: "stone"} }
	_, err := fencelock.New(d, fencelock.Require(fencelock.Need{FIFO: true, Fencing: fencelock.Anchored}))
	wantErr(t, "New", err, fencelock.ErrUnsupported)
	for _, s := range []string{"stone", "FIFO", "Fencing anchored", "memory", "redis"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("got %v, want it to say %q", err, s)
		}
	}
	_, err = fencelock.New(newFake(t), fencelock.Require(fencelock.Need{TTL: -1}))
	wantErr(t, "a negative TTL", err, fencelock.ErrInvalid)
}

func TestRequireMet(t *testing.T) {
	need := fencelock.Need{Fencing: fencelock.Anchored, FIFO: true, TTL: time.Second}
	open(t, newFake(t), fencelock.Require(need))
}

func TestBadNames(t *testing.T) {
	d := newFake(t)
	l := open(t, d)
	for what, name := range map[string]string{
		"empty": "", "too long": strings.Repeat("x", 513), "NUL": "a\x00b", "not UTF-8": "a\xffb",
		"half a rune": "caf\xc3",
	} {
		if got := l.Mutex(name).Name(); got != name {
			t.Errorf("%s: got the name %q, want %q", what, got, name)
		}
		_, err := l.Mutex(name).Lock(t.Context())
		wantErr(t, what+": lock", err, fencelock.ErrInvalid)
		_, err = l.Mutex(name).TryLock(t.Context())
		wantErr(t, what+": trylock", err, fencelock.ErrInvalid)
		_, err = l.Inspect(t.Context(), name)
		wantErr(t, what+": inspect", err, fencelock.ErrInvalid)
		wantErr(t, what+": break", l.Break(t.Context(), name), fencelock.ErrInvalid)
		wantErr(t, what+": do", l.Do(t.Context(), name, nil), fencelock.ErrInvalid)
	}
	for _, err := range l.List(t.Context(), "\xff") {
		wantErr(t, "list of a bad prefix", err, fencelock.ErrInvalid)
	}
	if got := d.count(); got != 0 {
		t.Errorf("got %d calls of the driver, want none", got)
	}
	if got := l.Mutex("n").Name(); got != "n" {
		t.Errorf("name: got %q, want n", got)
	}
}

func TestNewLeavesTheDriverOnError(t *testing.T) {
	d := newFake(t)
	_, err := fencelock.New(d, fencelock.WithTTL(-1))
	wantErr(t, "New", err, fencelock.ErrInvalid)
	if got := d.count("close"); got != 0 {
		t.Error("New closed the caller's driver")
	}
	_, err = fencelock.New(nil)
	wantErr(t, "New(nil)", err, fencelock.ErrInvalid)
	var op *fencelock.OpError
	if !errors.As(err, &op) || op.Op != "open" {
		t.Errorf("got %v, want an OpError of open", err)
	}
}

func TestTraits(t *testing.T) {
	d, err := memory.New()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := open(t, d).Traits(), d.Traits(); got != want {
		t.Errorf("got %+v, want the driver's, %+v", got, want)
	}
}
