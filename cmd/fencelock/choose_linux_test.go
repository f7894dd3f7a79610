package main

import "testing"

// On a terminal it asks for what no flag has answered.
func TestChooseOnATerminal(t *testing.T) {
	t.Parallel()
	p := onTerminal(t, "memory://", "choose", "--overlap", "never", "--rate", "10")
	p.shows("fencing tokens")
	p.types("no\n")
	p.shows("node of the store dies")
	p.types("no\n")
	p.shows("write in Postgres")
	p.types("maybe\n")
	p.shows("want yes or no")
	p.types("yes\n")
	p.shows("transactional: ")
	p.exits(0)
}

func TestChooseInterrupted(t *testing.T) {
	t.Parallel()
	p := onTerminal(t, "memory://", "choose")
	p.shows("What if two run at once")
	p.types("\x03")
	p.exits(130)
}
