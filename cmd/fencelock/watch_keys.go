package main

import (
	"bytes"
	"os"
)

// A key is what the user of a screen asks for.
type key int

const (
	keyQuit key = iota
	keySuspend
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyTop
	keyBottom
)

// keyCodes are what terminals send. In raw mode Ctrl-C and its like are bytes too.
var keyCodes = []struct {
	code string
	key  key
}{
	{"q", keyQuit},
	{"Q", keyQuit},
	{"\x03", keyQuit},
	{"\x1c", keyQuit},
	{"\x1a", keySuspend},
	{"k", keyUp},
	{"\x1b[A", keyUp},
	{"\x1bOA", keyUp},
	{"j", keyDown},
	{"\x1b[B", keyDown},
	{"\x1bOB", keyDown},
	{"\x1b[5~", keyPageUp},
	{"\x02", keyPageUp},
	{"\x1b[6~", keyPageDown},
	{"\x06", keyPageDown},
	{" ", keyPageDown},
	{"g", keyTop},
	{"\x1b[H", keyTop},
	{"\x1bOH", keyTop},
	{"\x1b[1~", keyTop},
	{"G", keyBottom},
	{"\x1b[F", keyBottom},
	{"\x1bOF", keyBottom},
	{"\x1b[4~", keyBottom},
}

// readKeys sends what is typed; the channel is closed when the keyboard is gone. Its goroutine
// ends with the process: a terminal's read cannot be ended.
func readKeys(in *os.File) <-chan key {
	keys := make(chan key)
	go func() {
		defer close(keys)
		buf := make([]byte, 256)
		for {
			n, err := in.Read(buf)
			if err != nil {
				return
			}
			for _, k := range keysIn(buf[:n]) {
				keys <- k
			}
		}
	}()
	return keys
}

// keysIn returns the known keys of what was typed.
func keysIn(typed []byte) []key {
	var keys []key
next:
	for len(typed) > 0 {
		for _, c := range keyCodes {
			if rest, ok := bytes.CutPrefix(typed, []byte(c.code)); ok {
				keys = append(keys, c.key)
				typed = rest
				continue next
			}
		}
		if typed[0] == '\x1b' {
			break // an unknown sequence: its letters are no keys
		}
		typed = typed[1:]
	}
	return keys
}
