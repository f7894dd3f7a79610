// Package locks has the subcommands about locks at one moment: ls, inspect and break.
package locks

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// Ls returns the subcommand ls.
func Ls(a *cli.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or waited for",
		Long: `List the locks whose names have PREFIX and that are held or waited for, sorted
by name. "-" stands for what the store cannot tell. It is no snapshot of one moment.`,
		Example: "  fencelock ls jobs/\n  fencelock ls --json | jq -r .owner",
		Args:    cli.Args(0, 1, "at most one PREFIX is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := func(ctx context.Context, locks *fencelock.Locker) error {
				infos, err := cli.List(ctx, locks, cli.Prefix(args))
				switch {
				case err != nil:
					return err
				case !a.JSON:
					cli.InfoTable(a.Out, infos)
					return nil
				}
				for _, i := range infos {
					a.Print(cli.InfoOf(i))
				}
				return nil
			}
			return a.Operate(cmd.Context(), "", show)
		},
		ValidArgsFunction: a.CompleteName,
	}
	a.JSONFlag(cmd, "print one JSON object per line, with the keys of inspect")
	return cmd
}

// Inspect returns the subcommand inspect.
func Inspect(a *cli.App) *cobra.Command {
	exitCode := false
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock",
		Long: `Show one lock as the store sees it. A free lock is no error.

With --json: name, held, owner (empty: unknown), token (0: unknown),
expires_in_ms (by the store's clock; 0: no expiry of its own), waiters
(processes; -1: the store cannot tell), leaked (held without expiry); where
several hold it mode, holders (how many) and holds (id, owner, token, slot,
expires_in_ms of the first 100 to expire).`,
		Example: "  fencelock inspect jobs/nightly\n" +
			"  fencelock inspect --exit-code jobs/nightly || echo free",
		Args: cli.Args(1, 1, "one NAME is wanted"),
		RunE: func(cmd *cobra.Command, args []string) error {
			look := func(ctx context.Context, locks *fencelock.Locker) error {
				info, err := locks.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				if a.JSON {
					a.Print(cli.InfoOf(info))
				} else {
					show(a, info)
				}
				if exitCode && !info.Held {
					return cli.Exit(cli.ExitNo)
				}
				return nil
			}
			return a.Operate(cmd.Context(), args[0], look)
		},
		ValidArgsFunction: a.CompleteName,
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if the lock is free")
	a.JSONFlag(cmd, "print one JSON object")
	return cmd
}

// show prints one lock.
func show(a *cli.App, i fencelock.Info) {
	state := "free"
	switch {
	case i.Leaked:
		state = "held, without expiry: nobody will ever free it"
	case i.Held && i.Mode != fencelock.Exclusive:
		state = fmt.Sprintf("held by %d (%s)", i.Holders, i.Mode)
	case i.Held:
		state = "held"
	}
	for _, line := range [][2]string{
		{"name:", cli.Name(i.Name)},
		{"state:", state},
		{"owner:", cli.Owner(i)},
		{"token:", cli.Token(i)},
		{"expires in:", cli.Expiry(i)},
		{"waiters:", cli.Waiters(i)},
	} {
		fmt.Fprintf(a.Out, "%-12s%s\n", line[0], line[1])
	}
	if len(i.Holds) == 0 {
		return
	}
	fmt.Fprintln(a.Out)
	rows := []string{"HOLD\tOWNER\tTOKEN\tSLOT\tEXPIRES IN"}
	for _, h := range i.Holds {
		slot := "-"
		if i.Mode == fencelock.Permit {
			slot = strconv.Itoa(h.Slot)
		}
		one := fencelock.Info{Held: true, Owner: h.Owner, Token: h.Token, ExpiresIn: h.ExpiresIn}
		rows = append(rows, strings.Join([]string{h.ID, cli.Owner(one), cli.Token(one), slot, cli.Expiry(one)}, "\t"))
	}
	cli.Table(a.Out, rows...)
}
