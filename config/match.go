package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// mostShown is how many of a list a message shows.
const mostShown = 12

// find returns the index of the first rule that matches a name.
func find(rules []*Rule, name string) (int, error) {
	for i, r := range rules {
		if (backend.Scope{{Match: r.Match}}).Moves(name) {
			return i, nil
		}
	}
	var have []string
	for _, r := range rules {
		have = append(have, r.shown)
	}
	return 0, backend.Invalid("no rule of the configuration matches the name: it has %s; a last "+
		"rule with match \"*\" would take all others", listed(have))
}

// covers reports whether every name that narrow matches is matched by wide.
func covers(wide, narrow string) bool {
	if wide == narrow {
		return true
	}
	head, star := strings.CutSuffix(wide, "*")
	return star && strings.HasPrefix(strings.TrimSuffix(narrow, "*"), head)
}

// checkMatch returns the mistake of a pattern, or "".
func checkMatch(pattern string) string {
	head, star := strings.CutSuffix(pattern, "*")
	switch {
	case strings.Contains(head, "*"):
		return `match has a * before its end: want a name, or the beginning of names followed by ` +
			`one * (such as "inventory/*")`
	case star && head == "":
		return ""
	}
	if backend.CheckName(head) != nil { // its error quotes the pattern, which may have the value of a variable
		return fmt.Sprintf("match is no name, or beginning of one: "+
			"want at most %d bytes of UTF-8 without NUL", backend.MaxNameLen)
	}
	return ""
}

// quote shows text of the file in a message. It shortens the text, and hides a URL in the wrong place.
func quote(s string) string {
	const most = 60
	if strings.Contains(s, "://") {
		return "(a URL)"
	}
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return strconv.Quote(s)
}

// plain returns the message of an error without the sentinel's.
func plain(err error) string {
	return strings.TrimPrefix(err.Error(), backend.ErrInvalid.Error()+": ")
}
