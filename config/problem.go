package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// A Problem is a mistake in a file, with its place. It is no error by itself: Warnings are problems too.
type Problem struct {
	Line, Column int // from 1; 0 where there is no place
	What         string

	unsupported bool // a backend falls short
}

// String returns line:column: what.
func (p Problem) String() string {
	if p.Line == 0 {
		return p.What
	}
	return fmt.Sprintf("%d:%d: %s", p.Line, p.Column, p.What)
}

// Error has the mistakes of a file. It matches ErrInvalid, and ErrUnsupported if a backend cannot
// carry a rule.
type Error struct {
	File     string    // the file's name; "config" if it has none
	Problems []Problem // at least one, by their place
}

// Error returns the problems, each on a line as file:line:column: what.
func (e *Error) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for i, p := range e.Problems {
		if i == mostShown {
			lines = append(lines, fmt.Sprintf("%s: and %d more", e.File, len(e.Problems)-i))
			break
		}
		sep := ":"
		if p.Line == 0 {
			sep = ": "
		}
		lines = append(lines, e.File+sep+p.String())
	}
	return strings.Join(lines, "\n")
}

// Is reports whether target is ErrInvalid or, if a backend falls short, ErrUnsupported.
func (e *Error) Is(target error) bool {
	if errors.Is(target, backend.ErrInvalid) {
		return true
	}
	short := func(p Problem) bool { return p.unsupported }
	return errors.Is(target, backend.ErrUnsupported) && slices.ContainsFunc(e.Problems, short)
}

// pos is a place in the file.
type pos struct{ line, column int }

// problems is a list of problems.
type problems []Problem

func (ps *problems) add(at pos, format string, args ...any) {
	*ps = append(*ps, Problem{Line: at.line, Column: at.column, What: fmt.Sprintf(format, args...)})
}

// sorted returns them by their place.
func (ps problems) sorted() []Problem {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return ps
}
