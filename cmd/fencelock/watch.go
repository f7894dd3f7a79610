package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

func (a *app) watchCommand() *cobra.Command {
	interval := duration{d: time.Second, least: 10 * time.Millisecond}
	count := 0
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Follow who holds what",
		Long: `Look at the locks whose names have PREFIX again and again until interrupted. On a
terminal the table of ls is redrawn; otherwise, and with --json, each change is
a line: held (at the first look), acquired, released, changed (another holder
or another lease). What happens between two looks is not seen.

An outage of the store is reported once, and outlived, after the first look.`,
		Example: "  fencelock watch jobs/\n  fencelock watch --json --interval 200ms | jq -r .event",
		Args:    onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			if count < 0 {
				return usagef("--count %d: want 0 (for ever) or more", count)
			}
			w := &watcher{a: a, prefix: prefixOf(args), every: interval.d, count: count, redraw: !a.json && isTerminal(a.out)}
			return a.operate(cmd.Context(), w.watch)
		},
	}
	cmd.Flags().Var(&interval, "interval", "time between two looks")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many looks; 0: until interrupted")
	a.jsonFlag(cmd, "print one JSON object per line: at, event, and the keys of inspect")
	return cmd
}

// watcher is one watch.
type watcher struct {
	a      *app
	prefix string
	every  time.Duration
	count  int
	redraw bool

	seen   map[string]fencelock.Info // what was held at the last look; nil before the first
	outage bool                      // the last look failed
}

func (w *watcher) watch(ctx context.Context, locks *fencelock.Locker) error {
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	for n := 1; ; n++ {
		if err := w.look(ctx, locks); err != nil {
			if ctx.Err() != nil {
				return nil // interrupted: that is how a watch ends
			}
			return err
		}
		if n == w.count {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// look is one round.
func (w *watcher) look(ctx context.Context, locks *fencelock.Locker) error {
	infos, err := list(ctx, locks, w.prefix)
	switch {
	case err != nil && (w.seen == nil || ctx.Err() != nil):
		return err
	case err != nil:
		if !w.outage {
			w.a.report(nil, err)
		}
		w.outage = true
		return nil
	}
	w.outage = false
	held := map[string]fencelock.Info{}
	for _, i := range infos {
		if i.Held {
			held[i.Name] = i
		}
	}
	if w.redraw {
		w.draw(infos)
	} else {
		w.print(held)
	}
	w.seen = held
	return nil
}

// draw replaces the screen with the table.
func (w *watcher) draw(infos []fencelock.Info) {
	var screen bytes.Buffer
	screen.WriteString("\x1b[H\x1b[2J")
	fmt.Fprintf(&screen, "every %v: locks %s*   %s\n\n", w.every, w.prefixShown(), time.Now().Format(time.TimeOnly))
	printTable(&screen, infos)
	_, _ = w.a.out.Write(screen.Bytes()) // at once, so that it does not flicker
}

func (w *watcher) prefixShown() string {
	if w.prefix == "" {
		return ""
	}
	return safe(w.prefix)
}

// print prints what has changed since the last look.
func (w *watcher) print(held map[string]fencelock.Info) {
	now := time.Now()
	names := maps.Clone(held)
	maps.Copy(names, w.seen)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		old, was := w.seen[name]
		info, is := held[name]
		event := change(w.seen == nil, was, is, old, info)
		if event == "" {
			continue
		}
		if !is {
			info = old
			info.Held, info.ExpiresIn = false, 0
		}
		if w.a.json {
			w.a.printJSON(w.a.out, struct {
				At    time.Time `json:"at"`
				Event string    `json:"event"`
				infoJSON
			}{now, event, toJSON(info)})
			continue
		}
		fmt.Fprintf(w.a.out, "%s  %-8s  %s  owner %s  token %s\n", now.Format(time.RFC3339), event, safe(name), owner(info), token(info))
	}
}

// change names what happened to a lock between two looks; empty for nothing.
func change(first, was, is bool, old, info fencelock.Info) string {
	switch {
	case first:
		return "held"
	case !was:
		return "acquired"
	case !is:
		return "released"
	case old.Owner != info.Owner || old.Token != info.Token:
		return "changed"
	}
	return ""
}
