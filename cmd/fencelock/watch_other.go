//go:build !unix

package main

import "os"

// canDraw: a console may not understand the sequences of a screen.
const canDraw = false

func screenSignals() chan os.Signal { return nil }

func endSignals(chan os.Signal) {}

func (s *screen) signal(os.Signal) error { return nil }

func suspend() {}
