package watch

import (
	"os"
	"strings"
)

// A key is a command of the user to the screen.
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

// keyCodes are the bytes that terminals send for a key. In raw mode Ctrl-C is a byte too.
var keyCodes = map[key][]string{
	keyQuit:     {"q", "Q", "\x03", "\x1c"},
	keySuspend:  {"\x1a"},
	keyUp:       {"k", "\x1b[A", "\x1bOA"},
	keyDown:     {"j", "\x1b[B", "\x1bOB"},
	keyPageUp:   {"\x1b[5~", "\x02"},
	keyPageDown: {"\x1b[6~", "\x06", " "},
	keyTop:      {"g", "\x1b[H", "\x1bOH", "\x1b[1~"},
	keyBottom:   {"G", "\x1b[F", "\x1bOF", "\x1b[4~"},
}

// readKeys returns a channel of the typed keys, which is closed when the keyboard is gone. Its goroutine
// ends with the process: a read of a terminal cannot be ended.
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
			for _, k := range keysIn(string(buf[:n])) {
				keys <- k
			}
		}
	}()
	return keys
}

// keysIn returns the known keys in typed bytes.
func keysIn(typed string) []key {
	var keys []key
next:
	for typed != "" {
		for k, codes := range keyCodes {
			for _, code := range codes {
				if rest, ok := strings.CutPrefix(typed, code); ok {
					keys, typed = append(keys, k), rest
					continue next
				}
			}
		}
		if typed[0] == '\x1b' {
			break // an unknown sequence: its letters are no keys
		}
		typed = typed[1:]
	}
	return keys
}
