package main

import (
	"fmt"
	"strings"
)

// render is the table of the rooms that were tried, and the list of what lived.
func render(all map[string]Result) string {
	var b strings.Builder
	b.WriteString("| code | on | changes that build | a test fails | argued | live |\n|---|---|---|---|---|---|\n")
	for _, r := range rooms {
		res, ok := all[r.name]
		if !ok {
			fmt.Fprintf(&b, "| %s | not run | | | | |\n", r.name)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d |\n", r.name, res.Date,
			res.Found+res.Argued+len(res.Lived), res.Found, res.Argued, len(res.Lived))
	}
	for _, r := range rooms {
		for _, m := range all[r.name].Lived {
			fmt.Fprintf(&b, "- `%s`\n", strings.ReplaceAll(m.key(), "`", "'"))
		}
	}
	return b.String()
}
