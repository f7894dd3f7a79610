package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

func (a *app) leaksCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "leaks [PREFIX]",
		Short: "List the locks that never expire",
		Long: `List the locks that are held without an expiry: if their holder is dead, nobody
will ever free them, but "fencelock break" does. This library never makes such
locks; other programs on the same keys may.

Exit code: 0 if there is none, 1 if there are.`,
		Example: "  fencelock leaks || echo 'some locks never expire'",
		Args:    onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operate(cmd.Context(), func(ctx context.Context, locks *fencelock.Locker) error {
				infos, err := list(ctx, locks, prefixOf(args))
				if err != nil {
					return err
				}
				infos = slices.DeleteFunc(infos, func(i fencelock.Info) bool { return !i.Leaked })
				switch {
				case len(infos) > 0:
					a.printInfos(infos)
					return exit(exitNo)
				case !a.json:
					fmt.Fprintln(a.out, "no leaks")
				}
				return nil
			})
		},
	}
	a.jsonFlag(cmd, "print one JSON object per line, with the keys of inspect")
	return cmd
}
