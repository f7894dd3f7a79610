// Package prom runs promtool and a Prometheus server for tests.
package prom

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// Program returns the path of promtool or of prometheus. Where it is not installed the test is
// skipped, or fails if FENCELOCK_REQUIRE lists prometheus or is "all", as for the servers of
// package servers.
func Program(tb testing.TB, name string) string {
	tb.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if required(os.Getenv("FENCELOCK_REQUIRE")) {
		tb.Fatalf("%s is required by FENCELOCK_REQUIRE but missing; run scripts/setup-tests.sh prometheus", name)
	}
	tb.Skipf("%s is missing; run scripts/setup-tests.sh prometheus", name)
	return ""
}

// required reports whether a comma-separated list has prometheus or "all".
func required(list string) bool {
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
	return slices.Contains(names, "prometheus") || slices.Contains(names, "all")
}
