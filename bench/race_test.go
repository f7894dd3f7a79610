//go:build race

package bench_test

// raceDetector is whether the tests run with it, which allocates on its own account.
const raceDetector = true
