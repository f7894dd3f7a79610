package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/fencelock/fencelock"
)

// Info is fencelock.Info as the command prints it. Its keys are stable.
type Info struct {
	Name      string          `json:"name"`
	Held      bool            `json:"held"`
	Owner     string          `json:"owner"`             // empty: unknown
	Token     fencelock.Token `json:"token"`             // 0: unknown
	ExpiresIn int64           `json:"expires_in_ms"`     // 0: the store has no expiry of its own
	Waiters   int             `json:"waiters"`           // -1: the store cannot tell
	Leaked    bool            `json:"leaked"`            // held without expiry
	Mode      fencelock.Mode  `json:"mode,omitempty"`    // left out: exclusive
	Holders   int             `json:"holders,omitempty"` // of another mode
	Holds     []Held          `json:"holds,omitempty"`   // the first of them to expire
}

// Held is fencelock.Held as the command prints it. Its keys are stable.
type Held struct {
	ID        string          `json:"id"` // for break --hold
	Owner     string          `json:"owner"`
	Token     fencelock.Token `json:"token"`
	Slot      int             `json:"slot"` // of a permit
	ExpiresIn int64           `json:"expires_in_ms"`
}

// InfoOf returns an Info as JSON has it.
func InfoOf(i fencelock.Info) Info {
	var holds []Held
	for _, h := range i.Holds {
		holds = append(holds, Held{h.ID, h.Owner, h.Token, h.Slot, h.ExpiresIn.Milliseconds()})
	}
	return Info{
		i.Name, i.Held, i.Owner, i.Token, i.ExpiresIn.Milliseconds(), i.Waiters, i.Leaked, i.Mode, i.Holders, holds,
	}
}

// Safe returns text of a store for a terminal. It quotes text that could steer the terminal, or that
// could be taken for other text.
func Safe(s string) string {
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

// Owner returns the column OWNER of an Info: the owner, or the number of holders.
func Owner(i fencelock.Info) string {
	if i.Holders > 1 {
		return fmt.Sprintf("%d %ss", i.Holders, i.Mode)
	}
	owner := orDash(i.Owner != "", Safe(i.Owner))
	if i.Held && i.Mode != fencelock.Exclusive {
		owner += fmt.Sprintf(" (%v)", i.Mode)
	}
	return owner
}

// Token returns the column TOKEN.
func Token(i fencelock.Info) string { return orDash(i.Token != 0, strconv.FormatInt(i.Token, 10)) }

// Expiry returns the column EXPIRES IN.
func Expiry(i fencelock.Info) string {
	if i.Leaked {
		return "never"
	}
	return orDash(i.Held && i.ExpiresIn > 0, i.ExpiresIn.Round(100*time.Millisecond).String())
}

// Waiters returns the column WAITERS.
func Waiters(i fencelock.Info) string { return orDash(i.Waiters >= 0, strconv.Itoa(i.Waiters)) }

// List returns the locks of the store's List, sorted by name.
func List(ctx context.Context, locks *fencelock.Locker, prefix string) ([]fencelock.Info, error) {
	var infos []fencelock.Info
	for info, err := range locks.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		infos = append(infos, info)
	}
	slices.SortFunc(infos, func(x, y fencelock.Info) int { return strings.Compare(x.Name, y.Name) })
	return infos, nil
}

// Table prints rows of columns that are separated by tabs.
func Table(w io.Writer, rows ...string) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, r)
	}
	_ = t.Flush() // the terminal or pipe may be gone
}

// InfoTable prints a table of locks.
func InfoTable(w io.Writer, infos []fencelock.Info) {
	rows := []string{"NAME\tOWNER\tTOKEN\tEXPIRES IN\tWAITERS"}
	for _, i := range infos {
		rows = append(rows, strings.Join(
			[]string{Safe(i.Name), Owner(i), Token(i), Expiry(i), Waiters(i)}, "\t"))
	}
	Table(w, rows...)
}

// Folded breaks a text between words into lines of at most width bytes, unless a word is longer.
func Folded(text string, width int) []string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		last := len(lines) - 1
		if last < 0 || len(lines[last])+1+len(word) > width {
			lines = append(lines, word)
			continue
		}
		lines[last] += " " + word
	}
	return lines
}

// Points prints a list. Its head, padded to a number of columns, stands next to the first entry.
func Points(w io.Writer, columns int, head string, points []string) {
	for _, p := range points {
		fmt.Fprintf(w, "  %-*s %s\n", columns, head, p)
		head = ""
	}
}

// IsTerminal reports whether a stream is a terminal.
func IsTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Args returns the check that there are from least to most arguments. Its error says what is wanted
// and does not quote what was typed: it may be a URL with a password.
func Args(least, most int, want string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < least || len(args) > most {
			return Usagef("%s, %d given", want, len(args))
		}
		return nil
	}
}

// Prefix returns the PREFIX argument, or the empty one.
func Prefix(args []string) string {
	if len(args) == 0 {
		return ""
	}
	return args[0]
}
