//go:build linux

package guarantees_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// client is a worker, seen from its parent.
type client struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	ways
	dead bool // it was killed
}

// launch starts a worker.
func launch(a assignment, w ways) (*client, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	c := &client{name: a.Name, cmd: exec.Command(exe), lines: make(chan string, 16), ways: w}
	if w.net != nil {
		c.cmd = exec.Command("nsenter", "--net="+w.net.path(), exe)
	}
	c.cmd.Env = append(os.Environ(), workerEnv+"="+string(raw))
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
		_ = c.cmd.Wait() // how it ended, the lines and their end say
		close(c.lines)
	}()
	return c, nil
}

// patience is how long a worker may take to answer.
const patience = 40 * time.Second

// answer returns its next line.
func (c *client) answer() (string, error) {
	select {
	case line, ok := <-c.lines:
		if !ok {
			return "", fmt.Errorf("%s has ended", c.name)
		}
		if rest, bad := strings.CutPrefix(line, "error "); bad {
			return "", fmt.Errorf("%s: %s", c.name, rest)
		}
		if rest, bad := strings.CutPrefix(line, "failed "); bad {
			return "", fmt.Errorf("%s could not start: %s", c.name, rest)
		}
		return line, nil
	case <-time.After(patience):
		return "", fmt.Errorf("%w: %s says nothing", errStalled, c.name)
	}
}

func (c *client) send(words ...string) error {
	_, err := fmt.Fprintln(c.in, strings.Join(words, " "))
	return err
}

// ask gives it a command and returns its answer.
func (c *client) ask(words ...string) (string, error) {
	if err := c.send(words...); err != nil {
		return "", fmt.Errorf("%s: %w", c.name, err)
	}
	return c.answer()
}

// grants is how many it has had.
func (c *client) grants() (int, error) {
	line, err := c.ask("counts")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(line)
}

func (c *client) signal(s syscall.Signal) error { return c.cmd.Process.Signal(s) }

// kill ends it as if by SIGKILL, and returns when it is gone.
func (c *client) kill() {
	_ = c.signal(syscall.SIGCONT) // it may have ended
	_ = c.cmd.Process.Kill()
	for range c.lines {
	}
	c.dead = true
}
