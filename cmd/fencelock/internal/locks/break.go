package locks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/meant"
)

// Breaking explains a break. The help, the question and the refusal show it.
const Breaking = `Breaking frees the lock although its holder may still be at work: until that
holder has noticed, two may work at once, unless what they work on checks the
fencing token.`

// Broken is the answer to a break in JSON. Its keys are stable.
type Broken struct {
	Name   string          `json:"name"`
	Broken bool            `json:"broken"` // false: it was free already
	Owner  string          `json:"owner"`
	Token  fencelock.Token `json:"token"`
	Hold   string          `json:"hold,omitempty"` // the one that was broken, of several
}

// breaking has the flags of break.
type breaking struct {
	a            *cli.App
	name, hold   string // hold: only this one of several
	yes, foreign bool
}

// Break returns the subcommand break.
func Break(a *cli.App) *cobra.Command {
	b := breaking{a: a}
	cmd := &cobra.Command{
		Use:   "break NAME",
		Short: "Free a lock, whoever holds it",
		Long: `Free a lock, whoever holds it, and say who that was.

` + Breaking + `

Where several hold it, --hold frees one of them, by the id that inspect shows.

Exit code: 0 also if the lock was free already; 1 if you did not confirm.`,
		Example: "  fencelock break jobs/nightly\n  fencelock break --yes jobs/nightly\n" +
			"  fencelock break --hold 0a1b2c3d4e5f reports\n  fencelock break --foreign legacy",
		Args: cli.Args(1, 1, "one NAME is wanted"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !b.yes && !cli.IsTerminal(a.In):
				return cli.Usagef("break needs --yes when stdin is not a terminal.\n%s", Breaking)
			case cmd.Flags().Changed("hold") && b.hold == "": // an unset variable in a script must not break them all
				return cli.Usagef("--hold is empty: want an id that inspect shows, or no --hold at all")
			}
			b.name = args[0]
			return a.Operate(cmd.Context(), b.name, b.free)
		},
		ValidArgsFunction: a.CompleteName,
	}
	cmd.Flags().BoolVarP(&b.yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringVar(&b.hold, "hold", "", "only the hold with this id, of several")
	cmd.Flags().BoolVar(&b.foreign, "foreign", false,
		"also what has no owner and no token, such as a key that some other program wrote")
	a.JSONFlag(cmd, "print one JSON object: name, broken, owner, token, hold")
	return cmd
}

func (b *breaking) free(ctx context.Context, locks *fencelock.Locker) error {
	name := b.name
	info, err := locks.Inspect(ctx, name)
	if err != nil {
		return err
	}
	if err := b.mayBreak(locks, info); err != nil {
		return err
	}
	if b.hold != "" {
		b.one(&info)
	}
	if info.Held && !b.yes {
		if err := b.confirm(ctx, info); err != nil {
			return err
		}
		if b.hold != "" { // which may have ended meanwhile
			if info, err = locks.Inspect(ctx, name); err != nil {
				return err
			}
			b.one(&info)
		}
	}
	if b.hold == "" {
		info, err = b.whole(ctx, locks, info)
	} else {
		err = locks.BreakHold(ctx, name, b.hold)
	}
	if err != nil {
		return err
	}
	switch {
	case b.a.JSON:
		b.a.Print(Broken{name, info.Held, info.Owner, info.Token, b.hold})
	case info.Held:
		fmt.Fprintf(b.a.Out, "broke %s: it was held by %s, token %s\n",
			cli.Name(name), cli.Owner(info), cli.Token(info))
	case b.hold != "":
		fmt.Fprintf(b.a.Out, "%s is held by no %s any more\n", cli.Name(name), b.hold)
	default:
		fmt.Fprintf(b.a.Out, "%s was free already\n", cli.Name(name))
	}
	return nil
}

// mayBreak refuses a lock of another program without --foreign.
func (b *breaking) mayBreak(locks *fencelock.Locker, i fencelock.Info) error {
	switch {
	case !Foreign(i) || b.foreign:
		return nil
	case InTransaction(locks):
		return cli.Usagef("%s is held by a transaction of postgres.LockTx, or by hand. Breaking ends "+
			"its session and rolls it back; look at it in the database first, then add --foreign.", cli.Safe(b.name))
	}
	return cli.Usagef("%s was not locked by Fencelock: it may be another program's lock, "+
		"or no lock at all. Breaking deletes it; look at it in the store first, then add "+
		"--foreign.", cli.Safe(b.name))
}

// whole breaks the hold that info shows, also if info is free, because a store may know of half a lock. With --yes
// no answer was about that hold, so whole breaks a later hold too. It returns the hold that it broke.
func (b *breaking) whole(ctx context.Context, locks *fencelock.Locker, info fencelock.Info) (fencelock.Info, error) {
	err := locks.Break(meant.With(ctx, info), b.name)
	gone, ok := errors.AsType[*meant.GoneError](err)
	switch {
	case !ok:
		return info, err
	case b.yes:
		if err := b.mayBreak(locks, gone.Now); err != nil {
			return gone.Now, err
		}
		return gone.Now, locks.Break(ctx, b.name)
	case gone.Now.Held:
		return gone.Now, cli.WithCode(cli.ExitNo, "%s is held with token %s by now: it was left as it is",
			cli.Safe(b.name), cli.Token(gone.Now))
	}
	return gone.Now, nil
}

// Foreign reports whether a lock is held, but not by Fencelock.
func Foreign(i fencelock.Info) bool { return i.Held && i.Owner == "" && i.Token == 0 }

// InTransaction reports whether a foreign lock of the store belongs to a database transaction.
func InTransaction(locks *fencelock.Locker) bool {
	name := locks.Traits().Name
	return name == "postgres-row" || name == "postgres-advisory"
}

// one changes info from the lock to the hold of --hold, or to a free lock if there is no such hold.
func (b *breaking) one(i *fencelock.Info) {
	at := slices.IndexFunc(i.Holds, func(h fencelock.Held) bool { return h.ID == strings.ToLower(b.hold) })
	if at < 0 {
		*i = fencelock.Info{Name: i.Name}
		return
	}
	h := i.Holds[at]
	i.Owner, i.Token, i.ExpiresIn, i.Holders = h.Owner, h.Token, h.ExpiresIn, 1
}

// confirm asks on the terminal, and returns nil for a yes.
func (b *breaking) confirm(ctx context.Context, i fencelock.Info) error {
	fmt.Fprintf(b.a.Err, "%s is held by %s, token %s, and expires in %s.\n%s\nBreak it? [y/N] ",
		cli.Name(i.Name), cli.Owner(i), cli.Token(i), cli.Expiry(i), Breaking)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(b.a.In).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case s := <-answer:
		if s == "y" || s == "yes" {
			return nil
		}
		return cli.WithCode(cli.ExitNo, "not confirmed: the lock was left as it is")
	case <-ctx.Done():
		return ctx.Err()
	}
}
