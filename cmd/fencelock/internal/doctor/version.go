package doctor

import (
	"slices"
	"strconv"
	"strings"
)

// older reports whether version a is before b, which must not end in .0. What follows the numbers
// is not looked at.
func older(a, b string) bool { return slices.Compare(numbers(a), numbers(b)) < 0 }

// numbers are the numbers that a version begins with: 3.8.0-${x} has 3, 8 and 0.
func numbers(version string) []int {
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
