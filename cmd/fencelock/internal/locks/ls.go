// Package locks has the subcommands about locks at one moment: ls, inspect and break.
package locks

import (
	"context"

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
