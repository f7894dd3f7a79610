// Package release compares the versions of servers.
package release

import (
	"slices"
	"strconv"
	"strings"
)

// Older reports whether version a is before b, which must not end in .0. What follows the numbers
// is not looked at.
func Older(a, b string) bool { return slices.Compare(Numbers(a), Numbers(b)) < 0 }

// Numbers are the numbers that a version begins with: 3.8.0-${x} has 3, 8 and 0.
func Numbers(version string) []int {
	var ns []int
	for part := range strings.SplitSeq(version, ".") {
		digits := strings.TrimLeft(part, "0123456789")
		n, err := strconv.Atoi(strings.TrimSuffix(part, digits))
		if err != nil {
			break
		}
		if ns = append(ns, n); digits != "" {
			break
		}
	}
	return ns
}
