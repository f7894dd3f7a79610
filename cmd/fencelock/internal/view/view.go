// Package view follows locks by repeated looks at a store, for the subcommands watch and serve.
package view

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// lookMost bounds one look, unless the interval is longer. A look that takes longer is an outage.
const lookMost = 20 * time.Second

// A Look is one answer of the store.
type Look struct {
	At    time.Time
	Infos []fencelock.Info // sorted by name
	Err   error
}

// Follow looks at once, and then each time v.Every has passed. When ctx has ended, the goroutine closes
// the channel. The reader waits for that.
func (v *View) Follow(ctx context.Context, locks *fencelock.Locker) <-chan Look {
	looks := make(chan Look)
	prefix, every := v.Prefix, v.Every // the view is the reader's
	go func() {
		defer close(looks)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			l := lookOnce(ctx, locks, prefix, max(lookMost, every))
			if ctx.Err() != nil {
				return
			}
			select {
			case looks <- l:
			case <-ctx.Done():
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return looks
}

func lookOnce(
	ctx context.Context, locks *fencelock.Locker, prefix string, most time.Duration,
) Look {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	infos, err := cli.List(limited, locks, prefix)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: no answer within %v", fencelock.ErrUnavailable, most)
	}
	return Look{time.Now(), infos, err}
}

// A Row is a lock of a view.
type Row struct {
	fencelock.Info
	since time.Time // the look that first saw this hold; zero if it is not held
	older bool      // the hold may have begun long before since
}

// SeenFor returns how long the view has seen the hold, with ">" in front if the hold may be older.
func (r Row) SeenFor(now time.Time) string {
	switch {
	case r.since.IsZero():
		return "-"
	case r.older:
		return ">" + Brief(now.Sub(r.since))
	}
	return Brief(now.Sub(r.since))
}

// The events of a view.
const (
	Held     = "held" // at the first look
	Acquired = "acquired"
	Released = "released"
	Changed  = "changed" // another holder or another lease
)

// A Change is a difference of a lock between two looks. The Row is of the second look, but of Released it is of the
// first.
type Change struct {
	At    time.Time
	Event string
	Row
}

// An Outage begins with the first look that fails.
type Outage struct {
	Since time.Time
	Err   error // of the last look
}

// A View is the result of repeated looks at the locks with a prefix. It is not for several goroutines.
type View struct {
	Prefix string
	Every  time.Duration

	At     time.Time // the last good look; zero: there was none
	Rows   []Row     // of that look, sorted by name
	Outage *Outage   // since that look; nil: none
}

// Take adds a look, and returns the changes since the last good look, sorted by name.
func (v *View) Take(l Look) []Change {
	if l.Err != nil {
		if v.Outage == nil {
			v.Outage = &Outage{Since: l.At}
		}
		v.Outage.Err = l.Err
		return nil
	}
	blind := v.At.IsZero() || v.Outage != nil // a new hold may have begun at any time before
	old := map[string]Row{}
	for _, r := range v.Rows {
		old[r.Name] = r
	}
	var changes []Change
	rows := make([]Row, 0, len(l.Infos))
	for _, info := range l.Infos {
		was := old[info.Name]
		delete(old, info.Name)
		r := Row{Info: info}
		if info.Held {
			r.since, r.older = l.At, blind
		}
		event := changeOf(v.At.IsZero(), was.Info, info)
		switch {
		case event == Released:
			changes = append(changes, Change{l.At, event, ended(was)})
		case event != "":
			changes = append(changes, Change{l.At, event, r})
		default:
			r.since, r.older = was.since, was.older
		}
		rows = append(rows, r)
	}
	for _, was := range old {
		if was.Held {
			changes = append(changes, Change{l.At, Released, ended(was)})
		}
	}
	slices.SortFunc(changes, func(x, y Change) int { return strings.Compare(x.Name, y.Name) })
	v.At, v.Rows, v.Outage = l.At, rows, nil
	return changes
}

// ended returns the row of a hold that has ended.
func ended(r Row) Row {
	r.Held, r.ExpiresIn, r.Leaked = false, 0, false
	return r
}

// changeOf returns the event between two looks at a lock, or "".
func changeOf(first bool, old, info fencelock.Info) string {
	switch {
	case !old.Held && !info.Held:
		return ""
	case first:
		return Held
	case !old.Held:
		return Acquired
	case !info.Held:
		return Released
	case old.Owner != info.Owner || old.Token != info.Token || old.Holders != info.Holders:
		return Changed
	}
	return ""
}

// Brief shows a duration in two units at most: 7s, 3m20s, 5h4m, 12d3h.
func Brief(d time.Duration) string {
	switch d = d.Truncate(time.Second); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// RowJSON is a Row as watch and serve print it. Its keys are stable.
type RowJSON struct {
	cli.Info
	Seen  int64 `json:"seen_ms"` // how long the view has seen this hold
	Older bool  `json:"older"`   // the hold may be older than that
}

// JSON returns the row as of now.
func (r Row) JSON(now time.Time) RowJSON {
	var seen time.Duration
	if !r.since.IsZero() {
		seen = now.Sub(r.since)
	}
	return RowJSON{cli.InfoOf(r.Info), seen.Milliseconds(), r.older}
}

// ChangeJSON is a Change as watch and serve print it. Its keys are stable.
type ChangeJSON struct {
	At    time.Time `json:"at"`
	Event string    `json:"event"`
	RowJSON
}

// JSON returns the change.
func (c Change) JSON() ChangeJSON { return ChangeJSON{c.At, c.Event, c.Row.JSON(c.At)} }
