package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// FuzzArgs gives the command any arguments, one a line, with all that the commands do taken out: an exit code that is
// documented, no panic, and never the password of a URL.
func FuzzArgs(f *testing.F) {
	for _, args := range []string{
		"", "run", "run\nx\n--\ntrue", "run\n--ttl\n30s\n--wait\n0\nx\n--\nls",
		"run\n--ttl=-1s\nx\n--\nls", "run\n--ttl\n\nx", "run\n--wait=1e9h\nx\n--\nls",
		"run\n--grace=NaN\nx\n--\nls",
		"ls\n--json", "inspect\n\x00", "inspect\n\xff", "break", "watch\n--every\n0", "leaks",
		"doctor\nredis://h:1:2", "bench\nmemory://", "conform\nmemory://\n--only\nA,B",
		"serve\n--listen\n::",
		"migrate\nstatus", "migrate\nadvance\n--to\nboth", "choose\n--help",
		"config\ncheck\n/nowhere", "help\nrun", "--version", "--no-such", "-", "--",
		"completion\nbash", "__complete\nrun\n", "--config", "--url", "--url=\nls",
		"version\n--json", "run\n--ttl\n9223372036854775807ns\nx\n--\nls",
	} {
		f.Add(args)
	}
	const secret = "hunter2secret"
	exits := map[int]bool{cli.ExitOK: true, cli.ExitUsage: true}
	f.Fuzz(func(t *testing.T, lines string) {
		var out bytes.Buffer
		a := &cli.App{
			In: strings.NewReader(""), Out: &out, Err: &out,
			Lookup:  func(string) (string, bool) { return "", false },
			TempDir: t.TempDir,
		}
		root := root(a)
		mute(root)
		args := append([]string{"--url", "redis://u:" + secret + "@127.0.0.1:1"}, strings.Split(lines, "\n")...)
		code := a.Execute(context.Background(), root, args)
		if !exits[code] {
			t.Errorf("%q: exit %d, want one for a usage error", args, code)
		}
		if strings.Contains(out.String(), secret) {
			t.Errorf("%q: the output shows the password: %s", args, out.String())
		}
	})
}

// mute takes out what the commands do once their arguments were accepted.
func mute(c *cobra.Command) {
	if c.RunE != nil {
		c.RunE = func(*cobra.Command, []string) error { return nil }
	}
	for _, sub := range c.Commands() {
		mute(sub)
	}
}
