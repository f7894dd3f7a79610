package doctor

import (
	"cmp"
	"strconv"
	"strings"
)

// older reports whether version a is before b. What follows the numbers is not looked at.
func older(a, b string) bool {
	as, bs := numbers(a), numbers(b)
	for i := range max(len(as), len(bs)) {
		var x, y int
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		if c := cmp.Compare(x, y); c != 0 {
			return c < 0
		}
	}
	return false
}

// numbers are the numbers that a version begins with: 3.8.0-${x} has 3, 8 and 0.
func numbers(version string) []int {
	end := strings.IndexFunc(version, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
	if end >= 0 {
		version = version[:end]
	}
	var ns []int
	for part := range strings.SplitSeq(version, ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			break
		}
		ns = append(ns, n)
	}
	return ns
}
