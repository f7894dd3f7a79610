package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

// infoJSON is fencelock.Info as the command prints it. Its keys are stable.
type infoJSON struct {
	Name      string          `json:"name"`
	Held      bool            `json:"held"`
	Owner     string          `json:"owner"`         // empty: unknown
	Token     fencelock.Token `json:"token"`         // 0: unknown
	ExpiresIn int64           `json:"expires_in_ms"` // 0: the store has no expiry of its own
	Waiters   int             `json:"waiters"`       // -1: the store cannot tell
	Leaked    bool            `json:"leaked"`        // held without expiry
}

func toJSON(i fencelock.Info) infoJSON {
	return infoJSON{i.Name, i.Held, i.Owner, i.Token, i.ExpiresIn.Milliseconds(), i.Waiters, i.Leaked}
}

// safe returns text of a store as it may be shown on a terminal: what could
// steer it, or be taken for something else, is quoted.
func safe(s string) string {
	odd := func(r rune) bool { return !unicode.IsPrint(r) || r == '"' }
	if s == "" || s != strings.TrimSpace(s) || strings.ContainsFunc(s, odd) {
		return strconv.Quote(s)
	}
	return s
}

func orDash(known bool, s string) string {
	if !known {
		return "-"
	}
	return s
}

// The columns of an Info.
func owner(i fencelock.Info) string { return orDash(i.Owner != "", safe(i.Owner)) }

func token(i fencelock.Info) string { return orDash(i.Token != 0, strconv.FormatInt(i.Token, 10)) }

func expiry(i fencelock.Info) string {
	if i.Leaked {
		return "never"
	}
	return orDash(i.Held && i.ExpiresIn > 0, i.ExpiresIn.Round(100*time.Millisecond).String())
}

func waiters(i fencelock.Info) string { return orDash(i.Waiters >= 0, strconv.Itoa(i.Waiters)) }

// listPatience is for how long a list may bring nothing.
const listPatience = 5 * time.Second

// list returns what the store lists, sorted by name.
func list(ctx context.Context, locks *fencelock.Locker, prefix string) ([]fencelock.Info, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := fmt.Errorf("%w: no lock and no end of the list for %v", fencelock.ErrUnavailable, listPatience)
	timer := time.AfterFunc(listPatience, func() { cancel(silent) })
	defer timer.Stop()
	var infos []fencelock.Info
	for info, err := range locks.List(ctx, prefix) {
		switch {
		case err != nil && errors.Is(context.Cause(ctx), silent):
			return nil, silent
		case err != nil:
			return nil, err
		}
		timer.Reset(listPatience)
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(x, y fencelock.Info) int { return strings.Compare(x.Name, y.Name) })
	return infos, nil
}

// printTable prints a table of locks.
func printTable(w io.Writer, infos []fencelock.Info) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "NAME\tOWNER\tTOKEN\tEXPIRES IN\tWAITERS")
	for _, i := range infos {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", safe(i.Name), owner(i), token(i), expiry(i), waiters(i))
	}
	_ = t.Flush() // to a terminal or pipe that is gone there is nothing to say
}

// printInfos prints locks as a table, or with --json one object per line.
func (a *app) printInfos(infos []fencelock.Info) {
	if !a.json {
		printTable(a.out, infos)
		return
	}
	for _, i := range infos {
		a.printJSON(a.out, toJSON(i))
	}
}

// The arguments that commands take. Their errors do not quote what was typed:
// it may be a URL with a password.
func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("no arguments are taken, %d given", len(args))
	}
	return nil
}

func oneName(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("one NAME is wanted, %d given", len(args))
	}
	return nil
}

func onePrefix(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("at most one PREFIX is taken, %d given", len(args))
	}
	return nil
}

// prefixOf returns the PREFIX argument, or the empty one.
func prefixOf(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
