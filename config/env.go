package config

import (
	"fmt"
	"strings"
)

// expand puts the environment's values into s. wrong is a message about a mistake. It names variables but
// never shows their values.
func expand(s string, lookup func(string) (string, bool)) (value, wrong string) {
	var b strings.Builder
	for s != "" {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			break
		}
		b.WriteString(s[:i])
		s = s[i:]
		switch {
		case strings.HasPrefix(s, "$${"):
			b.WriteString("${")
			s = s[len("$${"):]
		case strings.HasPrefix(s, "${"):
			name, rest, ok := strings.Cut(s[len("${"):], "}")
			if !ok || !isVariable(name) {
				return "", "${ begins no variable: want ${NAME}, of letters, digits and _, or " +
					"$${ for the two characters themselves"
			}
			v, set := lookup(name)
			if !set {
				return "", fmt.Sprintf("the environment variable %s is not set", name)
			}
			b.WriteString(v)
			s = rest
		default:
			b.WriteByte('$')
			s = s[1:]
		}
	}
	b.WriteString(s)
	return b.String(), ""
}

func isVariable(name string) bool {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_"
	return name != "" && strings.ContainsRune(letters, rune(name[0])) && strings.Trim(name, letters+"0123456789") == ""
}
