//go:build !unix

package main

import "os"

// isTerminal reports whether a stream is a terminal, as far as the system tells.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// terminal has no foreground group here.
type terminal struct{}

func terminalOf(any) *terminal { return nil }

func (t *terminal) take() {}
