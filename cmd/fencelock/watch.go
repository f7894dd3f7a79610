package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

func (a *app) watchCommand() *cobra.Command {
	interval := duration{d: time.Second, least: 10 * time.Millisecond}
	count, plain := 0, false
	cmd := &cobra.Command{
		Use:   "watch [PREFIX]",
		Short: "Follow who holds what",
		Long: `Look at the locks whose names have PREFIX again and again until interrupted.

On a terminal a table fills the screen, with what has just changed marked:
+ acquired, ~ changed (another holder or another lease), - released. q or Ctrl-C
ends it; the arrow keys, j, k, PgUp, PgDn, g and G scroll; Ctrl-Z suspends it.
NO_COLOR leaves the marks and takes the colours.

Otherwise, and with --plain or --json, each change is a line: held (at the first
look), acquired, released, changed.

SEEN is how long this watch has seen the hold. Behind ">" the hold may be older:
it was there at the first look, or at the first after an outage. What happens
between two looks is not seen, and a holder without owner and token that takes
over from another such one cannot be told from it.

An outage of the store is reported once, and outlived, after the first look. A
look that takes longer than 10 s, or than the interval if that is more, is one.`,
		Example: "  fencelock watch jobs/\n  fencelock watch --json --interval 200ms | jq -r .event",
		Args:    onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			if count < 0 {
				return usagef("--count %d: want 0 (for ever) or more", count)
			}
			w := &watcher{a: a, view: view{prefix: prefixOf(args), every: interval.d}, count: count}
			if !a.json && !plain && !a.dumb() {
				w.screen = liveScreen(a.in, a.out)
			}
			return a.operate(cmd.Context(), w.watch)
		},
	}
	cmd.Flags().Var(&interval, "interval", "time between two looks")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many looks; 0: until interrupted")
	cmd.Flags().BoolVar(&plain, "plain", false, "print lines of changes on a terminal too")
	a.jsonFlag(cmd, "print one JSON object per line: at, event, the keys of inspect, seen_ms, older")
	return cmd
}

// dumb reports whether the terminal cannot be drawn on.
func (a *app) dumb() bool {
	term, _ := a.lookup("TERM")
	return term == "dumb"
}

// colour reports whether colours are wanted; see no-color.org.
func (a *app) colour() bool {
	no, _ := a.lookup("NO_COLOR")
	return no == ""
}

// watcher is one watch.
type watcher struct {
	a      *app
	view   view
	count  int
	screen *screen // nil: lines
}

func (w *watcher) watch(parent context.Context, locks *fencelock.Locker) error {
	ctx, cancel := context.WithCancel(parent)
	looks := keepLooking(ctx, locks, w.view.prefix, w.view.every)
	defer func() {
		cancel()
		for range looks { // until it has ended
		}
	}()
	first, ok := <-looks
	if !ok {
		return nil // interrupted: that is how a watch ends
	}
	if first.err != nil {
		return first.err
	}
	if w.screen != nil {
		return w.draw(ctx, first, looks)
	}
	w.lines(first, looks)
	return nil
}

// lines prints what each look changes.
func (w *watcher) lines(first look, looks <-chan look) {
	w.print(w.view.take(first))
	for n := 1; n != w.count; n++ {
		next, ok := <-looks
		if !ok {
			return
		}
		had := w.view.outage != nil
		w.print(w.view.take(next))
		if next.err != nil && !had {
			w.a.report(nil, next.err)
		}
	}
}

// print prints changes.
func (w *watcher) print(changes []change) {
	for _, c := range changes {
		if w.a.json {
			w.a.printJSON(w.a.out, changeToJSON(c))
			continue
		}
		tail := ""
		if c.event == released {
			tail = "  seen " + c.seenFor(c.at)
		}
		fmt.Fprintf(w.a.out, "%s  %-8s  %s  owner %s  token %s%s\n",
			c.at.Format(time.RFC3339), c.event, safe(c.Name), owner(c.Info), token(c.Info), tail)
	}
}

// draw keeps the screen until the user ends it, ctx ends or the looks are counted.
func (w *watcher) draw(ctx context.Context, first look, looks <-chan look) error {
	s := w.screen
	s.colour = w.a.colour()
	if err := s.open(); err != nil {
		return fmt.Errorf("the terminal cannot be drawn on: %w; --plain prints lines", err)
	}
	defer s.close()
	s.note(w.view.take(first))
	tick := time.NewTicker(min(w.view.every, time.Second)) // what is left counts down between looks
	defer tick.Stop()
	for n := 1; ; {
		if n == w.count {
			s.close()
			printTable(w.a.out, w.view.infos()) // what was drawn is gone with the screen
			return nil
		}
		if !s.draw(&w.view, time.Now()) {
			return nil // the terminal is gone
		}
		select {
		case next, ok := <-looks:
			if !ok {
				return nil
			}
			s.note(w.view.take(next))
			n++
		case k, ok := <-s.keys:
			if !ok || k == keyQuit {
				return nil
			}
			if err := s.press(k); err != nil {
				return err
			}
		case sig := <-s.signals:
			if err := s.signal(sig); err != nil {
				return err
			}
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// liveScreen returns the screen of a terminal, or nil where out is none or cannot be drawn on.
func liveScreen(in, out any) *screen {
	f, ok := out.(*os.File)
	if !ok || !canDraw || !isTerminal(f) {
		return nil
	}
	s := &screen{out: f, marks: map[string]change{}}
	if keyboard, ok := in.(*os.File); ok && isTerminal(keyboard) {
		s.in = keyboard
	}
	return s
}
