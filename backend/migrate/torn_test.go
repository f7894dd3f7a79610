package migrate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/file"
	"github.com/fencelock/fencelock/backend/migrate"
	"github.com/fencelock/fencelock/internal/core"
)

// files returns a driver of a store that keeps its gates in several places.
func (w world) files(dir string) *file.Driver {
	w.Helper()
	d, err := file.NewWith(dir, file.Options{Prefix: backend.DefaultPrefix, NoSockets: true})
	if err != nil {
		w.Fatal(err)
	}
	return d
}

// tear takes the gate out of some places of a store, as if they had lost their data.
func (w world) tear(d backend.Mover, lose func(place string) bool) {
	w.Helper()
	for r, err := range d.Load(w.Context(), backend.GateKey) {
		w.want("load", err, nil)
		if r.Data = nil; lose(r.Place) {
			w.want("swap", d.Swap(w.Context(), []backend.Record{r}, 0), nil)
		}
	}
}

// TestTornGateIsMended: the closed one of two stores has lost its gate in some of its places. Whoever comes next in
// phase both, or prepares, closes them again.
func TestTornGateIsMended(t *testing.T) {
	names := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, side := range []string{"old", "new"} {
		for what, next := range map[string]func(w world, both core.Caller, o migrate.Options){
			"a lock in phase both": func(w world, both core.Caller, _ migrate.Options) {
				for _, name := range names {
					w.cycle(both, name)
				}
			},
			"a start in phase both": func(w world, _ core.Caller, o migrate.Options) { w.startWith(o) },
			"prepare": func(w world, _ core.Caller, o migrate.Options) {
				w.want("prepare", w.pairOf("m", o.From, o.To).Prepare(w.Context()), nil)
				w.want("close", o.From.Close(), nil)
				w.want("close", o.To.Close(), nil)
			},
		} {
			t.Run(side+"/"+what, func(t *testing.T) {
				bubble(t, func(w world) {
					dir := w.TempDir()
					options := func() migrate.Options {
						o := w.options(backend.PhaseBoth)
						if side == "old" {
							o.From = w.files(dir)
						} else {
							o.To = w.files(dir)
						}
						return o
					}
					both := w.startWith(options())
					o := options()
					p, torn := w.pairOf("m", o.From, o.To), w.files(dir)
					defer func() {
						w.want("close", o.From.Close(), nil)
						w.want("close", o.To.Close(), nil)
						w.want("close", torn.Close(), nil)
					}()
					if side == "old" {
						w.want("open", p.Open(w.Context(), backend.PhaseTo), nil)
					}
					w.tear(torn, func(place string) bool { return place != "0" })
					next(w, both, options())
					st, err := p.Status(w.Context())
					w.want("status", err, nil)
					if st.From.Gate.Torn || st.To.Gate.Torn || st.From.Open(true) == st.To.Open(false) ||
						st.To.Open(false) != (side == "old") {
						w.Errorf("got the gates %+v and %+v, want them whole, and as before", st.From.Gate, st.To.Gate)
					}
					for _, name := range names {
						w.tryFails(core.Of(torn), name, backend.ErrUnsupported)
					}
				})
			})
		}
	}
}

// TestTornGateOfACancelledMigration: one whose gate was lost in some places after it was cancelled begins again.
func TestTornGateOfACancelledMigration(t *testing.T) {
	for _, side := range []string{"old", "new"} {
		w := world{T: t, old: newStore(t), new: newStore(t)}
		from, to, torn := backend.Driver(w.old), backend.Driver(w.new), w.files(t.TempDir())
		if side == "old" {
			from = torn
		} else {
			to = torn
		}
		p := w.pairOf("m", from, to)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		w.want("prepare", p.Prepare(ctx), nil)
		w.want("cancel", p.Cancel(ctx), nil)
		w.tear(torn, func(place string) bool { return place == "0" })
		w.want(side+": prepare again", p.Prepare(ctx), nil)
		w.want(side+": begin again", p.Open(ctx, backend.PhaseFrom), nil)
		st, err := p.Status(ctx)
		w.want("status", err, nil)
		if !st.From.Open(true) || st.To.Open(false) || st.From.Gate.Torn || st.To.Gate.Torn {
			t.Errorf("%s: got the gates %+v and %+v, want the old one open", side, st.From.Gate, st.To.Gate)
		}
		cancel()
		w.want("close", torn.Close(), nil)
	}
}

// changing is a store whose gate somebody changes while it is looked at for the first time.
type changing struct {
	store
	do *func()
}

func (s changing) Gates(ctx context.Context) ([]backend.Gate, error) {
	do := *s.do
	if do == nil {
		return s.Gater.Gates(ctx)
	}
	*s.do = nil
	do()
	gates, err := s.Gater.Gates(ctx)
	gates[0].Torn, gates[0].State = true, backend.GateBoth
	return gates, err
}

// TestTornByASwitch: a gate that a switch back opens just now is torn for a moment, and is left alone.
func TestTornByASwitch(t *testing.T) {
	bubble(t, func(w world) {
		w.start(backend.PhaseBoth)
		w.want("there", w.pair().Open(w.Context(), backend.PhaseTo), nil)
		back := func() { w.want("back", w.pair().Open(w.Context(), backend.PhaseFrom), nil) }
		p := w.pair().Over(changing{client(w.old), &back}, nil)
		w.want("prepare", p.Prepare(w.Context()), nil)
		if old, new := w.open(); !old || new {
			w.Errorf("old open %v, new open %v, want the old one alone", old, new)
		}
	})
}

// halfway is a store of which a change of several places reaches half of them, once.
type halfway struct {
	*file.Driver
	fails *bool
}

func (h halfway) Swap(ctx context.Context, rs []backend.Record, keep time.Duration) error {
	if len(rs) > 1 && *h.fails {
		*h.fails = false
		return errors.Join(h.Driver.Swap(ctx, rs[:len(rs)/2], keep), errDead)
	}
	return h.Driver.Swap(ctx, rs, keep)
}

// TestTornByAFailedSwitch: a store that was closed in some of its places only is open again in all of them.
func TestTornByAFailedSwitch(t *testing.T) {
	bubble(t, func(w world) {
		fails := false
		old := halfway{w.files(w.TempDir()), &fails}
		defer func() { w.want("close", old.Close(), nil) }()
		p := w.pairOf("m", old, w.new)
		w.want("prepare", p.Prepare(w.Context()), nil)
		fails = true
		w.want("a switch that fails", p.Open(w.Context(), backend.PhaseTo), errDead)
		st, err := p.Status(w.Context())
		w.want("status", err, nil)
		if fails || !st.From.Open(true) || st.From.Gate.Torn || st.To.Open(false) {
			w.Errorf("got the gates %+v and %+v, want the old one open, and whole", st.From.Gate, st.To.Gate)
		}
		w.want("a switch", p.Open(w.Context(), backend.PhaseTo), nil)
	})
}
