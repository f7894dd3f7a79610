package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
)

// lookMost bounds one look, unless the interval is longer: after that the store is taken to be out.
const lookMost = 10 * time.Second

// A look is what the store said at one time.
type look struct {
	at    time.Time
	infos []fencelock.Info // sorted by name
	err   error
}

// keepLooking looks at once and then every so often. The channel is closed when ctx has ended; its
// reader owns the goroutine, and waits for that.
func keepLooking(ctx context.Context, locks *fencelock.Locker, prefix string, every time.Duration) <-chan look {
	looks := make(chan look)
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

func lookOnce(ctx context.Context, locks *fencelock.Locker, prefix string, most time.Duration) look {
	limited, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	infos, err := list(limited, locks, prefix)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("%w: no answer within %v", fencelock.ErrUnavailable, most)
	}
	return look{time.Now(), infos, err}
}

// A row is a lock as a view has followed it.
type row struct {
	fencelock.Info
	since time.Time // the look that first saw this hold; zero if it is not held
	older bool      // the hold may have begun long before that
}

// seenFor says how long the hold has been seen; behind ">" it may be older.
func (r row) seenFor(now time.Time) string {
	if r.since.IsZero() {
		return "-"
	}
	s := brief(now.Sub(r.since))
	if r.older {
		return ">" + s
	}
	return s
}

// seen is how long the hold has been seen.
func (r row) seen(now time.Time) time.Duration {
	if r.since.IsZero() {
		return 0
	}
	return now.Sub(r.since)
}

// The events of a view.
const (
	held     = "held" // at the first look
	acquired = "acquired"
	released = "released"
	changed  = "changed" // another holder or another lease
)

// A change is what two looks tell of one lock: after it, or for released before it.
type change struct {
	at    time.Time
	event string
	row
}

// An outage is what a view has seen of one.
type outage struct {
	since time.Time
	err   error // of the last look
}

// A view is what repeated looks at the locks with a prefix came to. It is not for
// several goroutines.
type view struct {
	prefix string
	every  time.Duration

	at     time.Time // the last good look; zero: there was none
	rows   []row     // as of then, sorted by name
	outage *outage   // since then; nil: none
}

// take takes a look in, and returns what has changed since the last good one, sorted by name.
func (v *view) take(l look) []change {
	if l.err != nil {
		if v.outage == nil {
			v.outage = &outage{since: l.at}
		}
		v.outage.err = l.err
		return nil
	}
	blind := v.at.IsZero() || v.outage != nil // what began may have done so at any time before
	old := map[string]row{}
	for _, r := range v.rows {
		old[r.Name] = r
	}
	var changes []change
	rows := make([]row, 0, len(l.infos))
	for _, info := range l.infos {
		was := old[info.Name]
		delete(old, info.Name)
		r := row{Info: info}
		if info.Held {
			r.since, r.older = l.at, blind
		}
		event := changeOf(v.at.IsZero(), was.Held, info.Held, was.Info, info)
		switch {
		case event == released:
			changes = append(changes, change{l.at, event, ended(was)})
		case event != "":
			changes = append(changes, change{l.at, event, r})
		default:
			r.since, r.older = was.since, was.older
		}
		rows = append(rows, r)
	}
	for _, was := range old {
		if was.Held {
			changes = append(changes, change{l.at, released, ended(was)})
		}
	}
	slices.SortFunc(changes, func(x, y change) int { return strings.Compare(x.Name, y.Name) })
	v.at, v.rows, v.outage = l.at, rows, nil
	return changes
}

// ended is a hold that has ended.
func ended(r row) row {
	r.Held, r.ExpiresIn, r.Leaked = false, 0, false
	return r
}

// changeOf names what happened to a lock between two looks; empty for nothing.
func changeOf(first, was, is bool, old, info fencelock.Info) string {
	switch {
	case !was && !is:
		return ""
	case first:
		return held
	case !was:
		return acquired
	case !is:
		return released
	case old.Owner != info.Owner || old.Token != info.Token:
		return changed
	}
	return ""
}

// infos returns the rows as the store gave them.
func (v *view) infos() []fencelock.Info {
	infos := make([]fencelock.Info, 0, len(v.rows))
	for _, r := range v.rows {
		infos = append(infos, r.Info)
	}
	return infos
}

// counts returns how many locks are held, and how many processes wait; waiting is -1 if the store cannot tell.
func (v *view) counts() (holds, waiting int) {
	for _, r := range v.rows {
		if r.Held {
			holds++
		}
		if r.Waiters < 0 || waiting < 0 {
			waiting = -1
			continue
		}
		waiting += r.Waiters
	}
	return holds, waiting
}

// brief shows a duration in two units at most: 7s, 3m20s, 5h4m, 12d3h.
func brief(d time.Duration) string {
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

// message is what an error says, as it may be shown.
func message(err error) string { return scrub(strings.TrimPrefix(err.Error(), "fencelock: ")) }

// rowJSON is a row as watch and serve print it. Its keys are stable.
type rowJSON struct {
	infoJSON
	Seen  int64 `json:"seen_ms"` // how long the view has seen this hold
	Older bool  `json:"older"`   // it may be older than that
}

func rowToJSON(r row, now time.Time) rowJSON {
	return rowJSON{toJSON(r.Info), r.seen(now).Milliseconds(), r.older}
}

// changeJSON is a change as watch and serve print it. Its keys are stable.
type changeJSON struct {
	At    time.Time `json:"at"`
	Event string    `json:"event"`
	rowJSON
}

func changeToJSON(c change) changeJSON { return changeJSON{c.at, c.event, rowToJSON(c.row, c.at)} }
