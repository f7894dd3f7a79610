//go:build !unix

package run

// terminal has no foreground group here.
type terminal struct{}

func terminalOf(any, any) *terminal { return nil }

func (t *terminal) take() {}
