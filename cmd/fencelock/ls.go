package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

func (a *app) lsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ls [PREFIX]",
		Aliases: []string{"list"},
		Short:   "List the locks that are held or waited for",
		Long: `List the locks whose names have PREFIX and that are held or waited for, sorted
by name. "-" stands for what the store cannot tell. It is no snapshot of one moment.`,
		Example: "  fencelock ls jobs/\n  fencelock ls --json | jq -r .owner",
		Args:    onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd.Context(), func(ctx context.Context, locks *fencelock.Locker) error {
				infos, err := list(ctx, locks, prefixOf(args))
				if err != nil {
					return err
				}
				a.printInfos(infos)
				return nil
			})
		},
	}
	a.jsonFlag(cmd, "print one JSON object per line, with the keys of inspect")
	return cmd
}
