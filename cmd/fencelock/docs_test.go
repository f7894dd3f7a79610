package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/run"
)

// call is the start of a command line of ours, in a document or an example.
var call = regexp.MustCompile(`^(?:go run \./cmd/)?fencelock(?: |$)`)

// TestDocumentedCommands holds every command line of the documents and of the help texts to the
// commands, flags and arguments that there are.
func TestDocumentedCommands(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]string{}
	for _, f := range append(files, "../../README.md") {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[filepath.Base(f)] = string(b)
	}
	for _, cmd := range root(cli.New()).Commands() {
		texts[cmd.Name()+" --help"] = cmd.Example
	}
	found := 0
	for where, text := range texts {
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(strings.TrimSpace(line), " #")
			line, _, _ = strings.Cut(line, " |")
			for part := range strings.SplitSeq(line, "; ") {
				if part = strings.TrimSpace(part); !call.MatchString(part) {
					continue
				}
				found++
				args := strings.Fields(call.ReplaceAllString(part, ""))
				if why := refused(args); why != nil {
					t.Errorf("%s: %q is refused: %v", where, part, why)
				}
			}
		}
	}
	if found < 30 {
		t.Errorf("got %d command lines, want at least 30: are they written another way now?", found)
	}
}

// refused is why the flags and arguments are not accepted; nil if they are.
func refused(args []string) error {
	root := root(cli.New())
	root.InitDefaultHelpFlag()
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	rest = cmd.Flags().Args()
	if cmd.Name() == "run" {
		if len(rest) > 0 && rest[0] == "[flags]" { // its form
			rest = rest[1:]
		}
		_, _, err = run.Split(rest)
		return err
	}
	return cmd.ValidateArgs(rest)
}
