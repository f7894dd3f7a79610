//go:build !linux

package guarantees_test

func isolate() {}
