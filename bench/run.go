package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/bench/internal/measure"
)

// Run measures the targets one after the other, and returns a row for each case of each. It empties
// its prefix before it returns.
//
// An error names the backend and the row, and comes with the rows that were measured before it. A row
// with at least one complete round is there as Partial. When ctx ends, the error is ctx's.
func Run(ctx context.Context, targets []Target, o Options) ([]Result, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if len(targets) == 0 {
		return nil, backend.Invalid("there is no backend to measure")
	}
	var all []Result
	seen := map[string]int{}
	for _, t := range targets {
		b, err := t.open(ctx)
		if err != nil {
			return all, named(t.Name, err)
		}
		if seen[b.label]++; seen[b.label] > 1 {
			b.label = fmt.Sprintf("%s#%d", b.label, seen[b.label])
		}
		rows, err := b.run(ctx, o)
		all = append(all, rows...)
		closed := b.close(ctx)
		if err == nil && closed != nil { // else the first error is the one to report
			err = fmt.Errorf("cleaning up: %w", closed)
		}
		if err != nil {
			return all, named(b.label, err)
		}
	}
	return all, nil
}

func named(label string, err error) error {
	if label == "" {
		return err
	}
	return fmt.Errorf("%s: %w", label, err)
}

// run measures every row of one backend.
func (b *bed) run(ctx context.Context, o Options) ([]Result, error) {
	var cases []Case
	for _, c := range Cases(b.traits, o.Held) {
		if len(o.Only) == 0 || slices.Contains(o.Only, string(c.Op)) || slices.Contains(o.Only, c.Name()) {
			cases = append(cases, c)
		}
	}
	var all []Result
	for i, c := range cases {
		at := Progress{Backend: b.label, Case: c, Row: i + 1, Rows: len(cases), Last: o.Rounds}
		r, err := b.row(ctx, c, o, at)
		if len(r.ours) > 0 {
			all = append(all, b.result(c, r, o.Rounds))
		}
		if err != nil {
			return all, fmt.Errorf("%s: %w", c.Name(), err)
		}
	}
	return all, nil
}

// row measures the rounds of one case: ours, then raw, and so on. After an error it returns the complete
// rounds.
func (b *bed) row(ctx context.Context, c Case, o Options, at Progress) (r rounds, err error) {
	ours, err := b.ours(ctx, c)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	raw, err := b.theirs(ctx, c)
	if err != nil {
		return r, rawError(ctx, err)
	}
	defer func() { err = errors.Join(err, raw.close()) }()
	for i := range o.Rounds {
		if at.Round = i + 1; o.Progress != nil {
			o.Progress(at)
		}
		mine, err := ours.measure(ctx, o.Duration)
		if err != nil {
			return r, err
		}
		if raw.measure != nil {
			base, err := raw.measure(ctx, o.Duration)
			if err != nil {
				return r, rawError(ctx, err)
			}
			r.theirs = append(r.theirs, base)
		}
		r.ours = append(r.ours, mine)
	}
	return r, nil
}

// rawError marks an error of a raw client as one of the store.
func rawError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the raw store: %w", backend.Unavailable(err))
}

// A side is ours or the raw store, ready for one case.
type side struct {
	// measure is nil if there is no such side.
	measure func(context.Context, time.Duration) (measure.Sample, error)
	free    func() error
}

func (s side) close() error {
	if s.free == nil {
		return nil
	}
	return s.free()
}

// commands returns the counter of the server's commands.
func (b *bed) commands(ctx context.Context) measure.Counter {
	if b.raw == nil {
		return nil
	}
	return func() (int64, bool) { return b.raw.Commands(ctx) }
}

// ours makes the library ready for a case.
func (b *bed) ours(ctx context.Context, c Case) (side, error) {
	ours := func(l *fencelock.Locker, i int) measure.Mutex {
		return measure.Ours(l.Mutex(nameOf(i)))
	}
	switch c.Op {
	case Handover:
		return handing(ours(b.one, 0), ours(b.two, 0)), nil
	case Held:
		return b.hold(ctx, c.Goroutines)
	case Readers, Turns, Permits:
		return b.shared(ctx, c)
	}
	all := make([]measure.Mutex, c.Goroutines)
	for i := range all {
		all[i] = ours(b.one, c.index(i))
	}
	return b.crowding(ctx, c, all)
}

// theirs makes the raw store ready for a case. A contended name has a mutex of the process in front.
func (b *bed) theirs(ctx context.Context, c Case) (side, error) {
	if b.raw == nil || c.Op == Held {
		return side{}, nil
	}
	if c.Op == Permits {
		return b.slots(ctx, c)
	}
	if c.Op.handsOver() {
		one, err := b.raw.Mutex(ctx, nameOf(0), true)
		if err != nil {
			return side{}, err
		}
		two, err := b.raw.Mutex(ctx, nameOf(0), true)
		return handing(one, two), err
	}
	all := make([]measure.Mutex, c.Goroutines)
	var mu sync.Mutex
	for i := range all {
		var err error
		if all[i], err = b.raw.Mutex(ctx, nameOf(c.index(i)), false); err != nil {
			return side{}, err
		}
		if c.Op == Contended {
			all[i] = within(&mu, all[i])
		}
	}
	return b.crowding(ctx, c, all)
}

// within takes mu before m.
func within(mu *sync.Mutex, m measure.Mutex) measure.Mutex {
	return measure.Mutex{
		Lock: func(ctx context.Context) error {
			mu.Lock()
			err := m.Lock(ctx)
			if err != nil {
				mu.Unlock()
			}
			return err
		},
		Unlock: func(ctx context.Context) error {
			defer mu.Unlock()
			return m.Unlock(ctx)
		},
	}
}

// crowding runs every cycle once, so that connections are open and scripts loaded, and returns a side
// that measures.
func (b *bed) crowding(ctx context.Context, c Case, all []measure.Mutex) (side, error) {
	if _, err := measure.Crowd(ctx, all, measure.Load{}); err != nil {
		return side{}, err
	}
	return side{measure: func(ctx context.Context, d time.Duration) (measure.Sample, error) {
		return measure.Crowd(ctx, all, measure.Load{
			For: d, Section: c.Section, Waits: c.Op == Contended || c.Op == Permits, Requests: b.commands(ctx),
		})
	}}, nil
}

// handing measures hand-overs between two clients.
func handing(one, two measure.Mutex) side {
	a, b := measure.Here(one), measure.Here(two)
	return side{measure: func(ctx context.Context, d time.Duration) (measure.Sample, error) {
		return measure.HandOver(ctx, a, b, d)
	}}
}
