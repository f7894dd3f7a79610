package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/fencelock/fencelock/conformance"
)

func main() {
	if err := record(); err != nil {
		fmt.Fprintln(os.Stderr, "versions:", err)
		os.Exit(1)
	}
}

func record() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("got %d arguments, want the name of a version such as redis-8.0", len(os.Args)-1)
	}
	cell := os.Args[1]
	found, log, err := read(os.Stdin)
	if err != nil {
		return err
	}
	bad := len(found) == 0
	for i := range found {
		found[i].Cell, found[i].Date = cell, time.Now().UTC().Format(time.DateOnly)
		if found[i].Test != tooOld {
			found[i].Rules = len(conformance.Rules())
		}
		fmt.Printf("%s: %s\n", cell, found[i])
		if number := cell[strings.LastIndex(cell, "-")+1:]; found[i].Version != "" &&
			!strings.HasPrefix(found[i].Version+".", number+".") {
			return fmt.Errorf("%s: what runs calls itself %q", cell, found[i].Version)
		}
		bad = bad || len(found[i].Broken) > 0
	}
	if path := os.Getenv("RECORD"); path != "" && len(found) > 0 {
		err = put(path, cell, found)
	}
	if err == nil && bad {
		err = fmt.Errorf("%s: not every rule is kept:\n%s", cell, log)
	}
	return err
}
