package cli

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const (
	// completeMost bounds a completion: the user has pressed a key and waits.
	completeMost = 2 * time.Second
	// completeNames is how many names are offered at the most.
	completeNames = 200
)

// CompleteName offers the names that are held or waited for, as the first argument. After an error it
// offers nothing. For later arguments the shell completes as usual.
func (a *App) CompleteName(
	cmd *cobra.Command, args []string, begun string,
) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completeMost)
	defer cancel()
	locks, err := a.Open(ctx, "", true)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer Close(locks)
	var names []string
	for info, err := range locks.List(ctx, begun) {
		if err != nil || len(names) == completeNames {
			break
		}
		if strings.HasPrefix(info.Name, begun) && Safe(info.Name) == info.Name {
			names = append(names, info.Name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
