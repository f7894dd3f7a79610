package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
)

func (a *app) inspectCommand() *cobra.Command {
	exitCode := false
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show who holds a lock",
		Long: `Show one lock as the store sees it. A free lock is no error.

With --json: name, held, owner (empty: unknown), token (0: unknown),
expires_in_ms (by the store's clock; 0: no expiry of its own), waiters
(processes; -1: the store cannot tell), leaked (held without expiry).`,
		Example: "  fencelock inspect jobs/nightly\n  fencelock inspect --exit-code jobs/nightly || echo free",
		Args:    oneName,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operateOn(cmd.Context(), args[0], func(ctx context.Context, locks *fencelock.Locker) error {
				info, err := locks.Inspect(ctx, args[0])
				if err != nil {
					return err
				}
				a.printInfo(info)
				if exitCode && !info.Held {
					return exit(exitNo)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&exitCode, "exit-code", false, "exit with 1 if the lock is free")
	a.jsonFlag(cmd, "print one JSON object")
	return cmd
}

// printInfo prints one lock.
func (a *app) printInfo(i fencelock.Info) {
	if a.json {
		a.printJSON(a.out, toJSON(i))
		return
	}
	state := "free"
	switch {
	case i.Leaked:
		state = "held, without expiry: nobody will ever free it"
	case i.Held:
		state = "held"
	}
	for _, line := range [][2]string{
		{"name:", safe(i.Name)},
		{"state:", state},
		{"owner:", owner(i)},
		{"token:", token(i)},
		{"expires in:", expiry(i)},
		{"waiters:", waiters(i)},
	} {
		fmt.Fprintf(a.out, "%-12s%s\n", line[0], line[1])
	}
}
