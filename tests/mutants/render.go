package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// render is the table of the rooms that were tried, and the list of what lived.
func render(all Results) string {
	var b strings.Builder
	b.WriteString("| code | since | changes | tried | that build | a test fails | argued | live |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	var lived []*mutant
	for _, r := range rooms {
		var sum Result
		for _, file := range slices.Sorted(maps.Keys(all[r.name])) {
			of := all[r.name][file]
			if sum.Date == "" || of.Date < sum.Date {
				sum.Date = of.Date
			}
			sum.All += of.All
			sum.Found += of.Found
			sum.Unbuilt += of.Unbuilt
			sum.Argued += of.Argued
			sum.Lived = append(sum.Lived, of.Lived...)
		}
		built := sum.Found + sum.Argued + len(sum.Lived)
		fmt.Fprintf(&b, "| %s | %s | %d | %d | %d | %d | %d | %d |\n", r.name, cmp.Or(sum.Date, "not run"), sum.All,
			built+sum.Unbuilt, built, sum.Found, sum.Argued, len(sum.Lived))
		lived = append(lived, sum.Lived...)
	}
	for _, m := range lived {
		fmt.Fprintf(&b, "- `%s`\n", strings.ReplaceAll(m.key(), "`", "'"))
	}
	return b.String()
}
