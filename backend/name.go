package backend

import (
	"strings"
	"unicode/utf8"
)

// MaxNameLen is the length of the longest name, in bytes.
const MaxNameLen = 512

// CheckName returns nil for a name that every backend takes, and otherwise an
// error that matches [ErrInvalid]: a name is 1 to 512 bytes of valid UTF-8
// without NUL. Nothing else about it matters: `a` and `a/b`, `A` and `a`, `..`,
// spaces and braces are different names everywhere.
func CheckName(name string) error { return checkText("name", name, 1) }

// CheckOwner returns nil for text that every backend can keep as an owner.
func CheckOwner(owner string) error { return checkText("owner", owner, 0) }

func checkText(what, s string, least int) error {
	switch {
	case len(s) < least:
		return Invalid("%s is empty: it must be 1 to %d bytes of UTF-8 without NUL", what, MaxNameLen)
	case len(s) > MaxNameLen:
		return Invalid("%s %q is %d bytes long: at most %d are allowed", what, shorten(s), len(s), MaxNameLen)
	case strings.IndexByte(s, 0) >= 0:
		return Invalid("%s %q has a NUL byte: that is not allowed", what, shorten(s))
	case !utf8.ValidString(s):
		return Invalid("%s %q is not valid UTF-8", what, shorten(s))
	}
	return nil
}
