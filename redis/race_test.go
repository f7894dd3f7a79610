//go:build race

package redis_test

// raced: the race detector is on.
const raced = true
