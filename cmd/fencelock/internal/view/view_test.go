package view

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	_ "github.com/fencelock/fencelock/backend/all"
	"github.com/fencelock/fencelock/internal/servers"
)

func TestChangeOf(t *testing.T) {
	t.Parallel()
	var free fencelock.Info
	one, two := fencelock.Info{Held: true, Owner: "o", Token: 1}, fencelock.Info{Held: true, Owner: "o", Token: 2}
	readers := func(n int) fencelock.Info { return fencelock.Info{Held: true, Token: 1, Holders: n} }
	for _, c := range []struct {
		first     bool
		old, info fencelock.Info
		want      string
	}{
		{true, free, one, "held"},
		{true, free, free, ""},
		{false, free, one, "acquired"},
		{false, one, free, "released"},
		{false, one, two, "changed"},
		{false, one, one, ""},
		{false, readers(2), readers(3), "changed"},
	} {
		if got := changeOf(c.first, c.old, c.info); got != c.want {
			t.Errorf("changeOf(%+v) = %q", c, got)
		}
	}
}

// taking feeds a view with looks a second apart; nil is an outage.
func taking(v *View, start time.Time, looks ...[]fencelock.Info) (changes []Change, now time.Time) {
	for i, infos := range looks {
		now = start.Add(time.Duration(i) * time.Second)
		l := Look{At: now, Infos: infos}
		if infos == nil {
			l.Err = errors.New("down")
		}
		changes = append(changes, v.Take(l)...)
	}
	return changes, now
}

func TestViewSince(t *testing.T) {
	t.Parallel()
	a := fencelock.Info{Name: "a", Held: true, Token: 1}
	a2 := fencelock.Info{Name: "a", Held: true, Token: 2}
	b := fencelock.Info{Name: "b", Held: true, Token: 3}
	waited := fencelock.Info{Name: "a", Waiters: 1}
	infos := func(i ...fencelock.Info) []fencelock.Info { return append([]fencelock.Info{}, i...) }
	for _, c := range []struct {
		name   string
		looks  [][]fencelock.Info
		events []string
		shown  []string // of the rows, at the last look
		out    bool
	}{
		{
			"there at first",
			[][]fencelock.Info{infos(a), infos(a), infos(a)},
			[]string{"held a"},
			[]string{">2s"},
			false,
		},
		{
			"begins later",
			[][]fencelock.Info{infos(), infos(a), infos(a)},
			[]string{"acquired a"},
			[]string{"1s"},
			false,
		},
		{
			"changes",
			[][]fencelock.Info{infos(a), infos(a2), infos(a2)},
			[]string{"held a", "changed a"},
			[]string{"1s"},
			false,
		},
		{
			"ends",
			[][]fencelock.Info{infos(a, b), infos(b)},
			[]string{"held a", "held b", "released a"},
			[]string{">1s"},
			false,
		},
		{
			"is waited for",
			[][]fencelock.Info{infos(waited), infos(a), infos(waited)},
			[]string{"acquired a", "released a"},
			[]string{"-"},
			false,
		},
		{"outage", [][]fencelock.Info{infos(a), nil, nil}, []string{"held a"}, []string{">2s"}, true},
		{
			"the same after an outage",
			[][]fencelock.Info{infos(), infos(a), nil, infos(a)},
			[]string{"acquired a"},
			[]string{"2s"},
			false,
		},
		{
			"another after an outage",
			[][]fencelock.Info{infos(), infos(a), nil, infos(a2), infos(a2)},
			[]string{"acquired a", "changed a"},
			[]string{">1s"},
			false,
		},
	} {
		v := &View{Every: time.Second}
		changes, now := taking(v, time.Unix(1000, 0), c.looks...)
		var events, shown []string
		for _, ch := range changes {
			events = append(events, ch.Event+" "+ch.Name)
		}
		for _, r := range v.Rows {
			shown = append(shown, r.SeenFor(now))
		}
		if !slices.Equal(events, c.events) || !slices.Equal(shown, c.shown) || (v.Outage != nil) != c.out {
			t.Errorf("%s: got events %q, seen %q, outage %v; want %q, %q, %v",
				c.name, events, shown, v.Outage, c.events, c.shown, c.out)
		}
	}
}

// A store that hangs is an outage, not a watch that stands still.
func TestLookIsBounded(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	locks, err := fencelock.Open(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locks.Close() })
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Resume() })
	l := lookOnce(t.Context(), locks, "", 50*time.Millisecond)
	if !errors.Is(l.Err, fencelock.ErrUnavailable) || !strings.Contains(l.Err.Error(), "50ms") {
		t.Errorf("got %v, want ErrUnavailable that names the time", l.Err)
	}
}

func TestBrief(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0:                                "0s",
		59*time.Second + 999e6:           "59s",
		time.Minute:                      "1m0s",
		3*time.Minute + 20*time.Second:   "3m20s",
		5*time.Hour + 4*time.Minute + 59: "5h4m",
		291 * time.Hour:                  "12d3h",
	} {
		if got := Brief(d); got != want {
			t.Errorf("Brief(%v): got %q, want %q", d, got, want)
		}
	}
}
