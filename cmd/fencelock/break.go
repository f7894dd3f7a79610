package main

import (
	"bufio"
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

// breaking says what breaking means, wherever it is asked for.
const breaking = `Breaking frees the lock although its holder may still be at work: until that
holder has noticed, two may work at once, unless what they work on checks the
fencing token.`

func (a *app) breakCommand() *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "break NAME",
		Short: "Free a lock, whoever holds it",
		Long: `Free a lock, whoever holds it, and say who that was.

` + breaking + `

Exit code: 0 also if the lock was free already; 1 if you did not confirm.`,
		Example: "  fencelock break jobs/nightly\n  fencelock break --yes jobs/nightly",
		Args:    oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !yes && !isTerminal(a.in) {
				return usagef("break needs --yes when stdin is not a terminal.\n%s", breaking)
			}
			return a.operateOn(cmd.Context(), args[0], func(ctx context.Context, locks *fencelock.Locker) error {
				return a.breakLock(ctx, locks, args[0], yes)
			})
		},
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	a.jsonFlag(cmd, "print one JSON object: name, broken, owner, token")
	return cmd
}

func (a *app) breakLock(ctx context.Context, locks *fencelock.Locker, name string, yes bool) error {
	info, err := locks.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if info.Held && !yes {
		ok, err := a.confirm(ctx, info)
		if err != nil {
			return err
		}
		if !ok {
			return withCode(exitNo, "not confirmed: the lock was left as it is")
		}
	}
	// Also when it looked free: a store may know of half a lock.
	if err := locks.Break(ctx, name); err != nil {
		return err
	}
	switch {
	case a.json:
		a.printJSON(a.out, struct {
			Name   string          `json:"name"`
			Broken bool            `json:"broken"` // false: it was free already
			Owner  string          `json:"owner"`
			Token  fencelock.Token `json:"token"`
		}{name, info.Held, info.Owner, info.Token})
	case info.Held:
		fmt.Fprintf(a.out, "broke %s: it was held by %s, token %s\n", safe(name), owner(info), token(info))
	default:
		fmt.Fprintf(a.out, "%s was free already\n", safe(name))
	}
	return nil
}

// confirm asks on the terminal.
func (a *app) confirm(ctx context.Context, i fencelock.Info) (bool, error) {
	fmt.Fprintf(a.err, "%s is held by %s, token %s, and expires in %s.\n%s\nBreak it? [y/N] ",
		safe(i.Name), owner(i), token(i), expiry(i), breaking)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(a.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case s := <-answer:
		return s == "y" || s == "yes", nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
