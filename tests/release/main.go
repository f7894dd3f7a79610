// Command release prepares a version of all modules:
//
//	release VERSION DIR
//
// It writes the modules that programs require to DIR, as a module proxy serves them (GOPROXY=file://DIR), and the
// tree with the version in each go.mod, go.sum and go.work to DIR/tree. It prints the tags of the version. It changes
// nothing else and sends nothing.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: release VERSION DIR")
		os.Exit(64)
	}
	tags, err := prepare(".", os.Args[1], os.Args[2])
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	for _, tag := range tags {
		fmt.Println(tag)
	}
}
