package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// roll starts the fleet with the first configuration, and deploys the others: it restarts one process after
// the other, while the rest goes on.
func roll(ctx context.Context, size int, mixed time.Duration, resource string, deploys [][]string) error {
	fleet := make([]*exec.Cmd, size)
	defer func() {
		for _, p := range fleet {
			_ = stop(p) // on the way out with another error
		}
	}()
	for _, env := range deploys {
		for i := range fleet {
			if err := stop(fleet[i]); err != nil {
				return err
			}
			fleet[i] = nil
			var err error
			if fleet[i], err = start(ctx, append(env, workerKey+"="+resource)); err != nil {
				return fmt.Errorf("%s: %w", env[1], err)
			}
			select {
			case <-time.After(mixed):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	for i := range fleet {
		if err := stop(fleet[i]); err != nil {
			return err
		}
		fleet[i] = nil
	}
	return nil
}

// start runs this program as a process of the fleet, and returns when it works.
func start(ctx context.Context, env []string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := exec.CommandContext(ctx, self)
	p.Env = append(os.Environ(), env...)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	if !bufio.NewScanner(out).Scan() {
		return nil, fmt.Errorf("it did not start: %w", p.Wait())
	}
	return p, nil
}

// stop ends a process as a deploy does: it is told to, and finishes what it is doing.
func stop(p *exec.Cmd) error {
	if p == nil {
		return nil
	}
	_ = p.Process.Signal(os.Interrupt) // if it has ended, Wait says how
	return p.Wait()
}
