//go:build unix

package main

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A TERM ends it within its time, also while somebody holds a connection open without a word.
func TestServeStops(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0], "serve", "--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), envCommand+"=1", "FENCELOCK_URL="+fileStore(t), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address := strings.Trim(strings.TrimPrefix(line, "serving http://"), "/\n")
	var d net.Dialer
	silent, err := d.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("got %v, want exit code 0", err)
	}
}
