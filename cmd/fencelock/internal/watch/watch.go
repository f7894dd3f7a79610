// Package watch has the subcommand watch, with its screen.
package watch

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	interval := cli.Duration{D: time.Second, Least: 10 * time.Millisecond}
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
look that takes longer than 20 s, or than the interval if that is more, is one.`,
		Example: "  fencelock watch jobs/\n" +
			"  fencelock watch --json --interval 200ms | jq -r .event",
		Args: cli.Args(0, 1, "at most one PREFIX is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if count < 0 {
				return cli.Usagef("--count %d: want 0 (for ever) or more", count)
			}
			w := &watcher{a: a, count: count}
			w.view.Prefix, w.view.Every = cli.Prefix(args), interval.D
			if term, _ := a.Lookup("TERM"); !a.JSON && !plain && term != "dumb" {
				w.screen = liveScreen(a.In, a.Out)
			}
			return a.Operate(cmd.Context(), "", w.watch)
		},
		ValidArgsFunction: a.CompleteName,
	}
	cmd.Flags().Var(&interval, "interval", "time between two looks")
	cmd.Flags().IntVar(&count, "count", 0, "end after so many looks; 0: until interrupted")
	cmd.Flags().BoolVar(&plain, "plain", false, "print lines of changes on a terminal too")
	a.JSONFlag(cmd, "print one JSON object per line: at, event, the keys of inspect, "+
		"seen_ms, older")
	return cmd
}

// watcher is one watch.
type watcher struct {
	a      *cli.App
	view   view.View
	count  int
	screen *screen // nil: lines
}

func (w *watcher) watch(parent context.Context, locks *fencelock.Locker) error {
	ctx, cancel := context.WithCancel(parent)
	looks := w.view.Follow(ctx, locks)
	defer func() {
		cancel()
		for range looks { // until it has ended
		}
	}()
	first, ok := <-looks
	if !ok {
		return nil // a signal is the usual end
	}
	if first.Err != nil {
		return first.Err
	}
	if w.screen != nil {
		return w.draw(ctx, first, looks)
	}
	w.lines(first, looks)
	return nil
}

// lines prints the changes of each look.
func (w *watcher) lines(first view.Look, looks <-chan view.Look) {
	w.print(w.view.Take(first))
	for n := 1; n != w.count; n++ {
		next, ok := <-looks
		if !ok {
			return
		}
		had := w.view.Outage != nil
		w.print(w.view.Take(next))
		if next.Err != nil && !had {
			w.a.Report(next.Err)
		}
	}
}

// print prints changes.
func (w *watcher) print(changes []view.Change) {
	for _, c := range changes {
		if w.a.JSON {
			w.a.Print(c.JSON())
			continue
		}
		tail := ""
		if c.Event == view.Released {
			tail = "  seen " + c.SeenFor(c.At)
		}
		fmt.Fprintf(w.a.Out, "%s  %-8s  %s  owner %s  token %s%s\n", c.At.Format(time.RFC3339),
			c.Event, cli.Safe(c.Name), cli.Owner(c.Info), cli.Token(c.Info), tail)
	}
}

// draw keeps the screen until the user ends it, ctx ends or the looks are counted.
func (w *watcher) draw(ctx context.Context, first view.Look, looks <-chan view.Look) error {
	s := w.screen
	no, _ := w.a.Lookup("NO_COLOR") // see no-color.org
	s.colour = no == ""
	if err := s.open(); err != nil {
		return fmt.Errorf("the terminal cannot be drawn on: %w; --plain prints lines", err)
	}
	defer s.close()
	s.note(w.view.Take(first))
	tick := time.NewTicker(min(w.view.Every, time.Second)) // the column EXPIRES IN counts down
	defer tick.Stop()
	for n := 1; ; {
		if n == w.count {
			s.close()
			var infos []fencelock.Info
			for _, r := range w.view.Rows {
				infos = append(infos, r.Info)
			}
			cli.InfoTable(w.a.Out, infos) // the drawn table is gone with the screen
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
			s.note(w.view.Take(next))
			n++
		case k, ok := <-s.keys:
			if !ok || k == keyQuit {
				return nil
			}
			if err := s.press(k); err != nil {
				return err
			}
		case sig := <-s.signals:
			if sig == continued { // another process had stopped this one
				s.leave()
				if err := s.enter(); err != nil {
					return err
				}
			}
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// liveScreen returns the screen of a terminal, or nil if out is no terminal or cannot be drawn on.
func liveScreen(in, out any) *screen {
	f, ok := out.(*os.File)
	if !ok || !canDraw || !cli.IsTerminal(f) {
		return nil
	}
	s := &screen{out: f, marks: map[string]view.Change{}}
	if keyboard, ok := in.(*os.File); ok && cli.IsTerminal(keyboard) {
		s.in = keyboard
	}
	return s
}
