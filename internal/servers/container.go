package servers

import (
	"context"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"syscall"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// publicImages run where FENCELOCK_IMAGE_… names no others.
var publicImages = map[string]string{
	"redis":     "redis:7.4",
	"etcd":      "gcr.io/etcd-development/etcd:v3.7.0",
	"zookeeper": "zookeeper:3.8",
	"postgres":  "postgres:17",
}

// image names a store's image.
func image(store string) string {
	if name := os.Getenv(envImage(store)); name != "" {
		return name
	}
	return publicImages[store]
}

// Container runs stores in containers, through testcontainers. They use the host's network and so
// the same addresses as local programs; the data lives inside the container and is lost with it. A
// program of its own does it, for each container (folder containers).
type Container struct{}

// Kind is "container".
func (Container) Kind() string { return "container" }

// Prepare pulls the image if it must. The container is created by the first start.
func (Container) Prepare(ctx context.Context, s stores.Spec) (stores.Process, error) {
	program, err := stores.Build(ctx, "containers")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	close(ended)
	c := &container{name: s.Name, cmd: cmd, exited: ended, service: rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})}
	args := s.Image
	if args == nil {
		args = s.Args
	}
	what := struct {
		Store, Name, Image string
		Args, Env          []string
		Dir, Data          string
		StopSignal         syscall.Signal
	}{s.Store, s.Name, image(s.Store), args, s.Env, s.Dir, s.Data, s.StopSignal}
	var missing string
	err = c.call(ctx, "Prepare", what, &missing)
	if err == nil && missing != "" {
		err = fmt.Errorf("%w: %s", stores.ErrMissing, missing)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may be pulling an image yet, and has made no container
		c.end()
		return nil, err
	}
	return c, nil
}

// container is one container at a time: losing the data means a new one.
type container struct {
	name    string
	cmd     *exec.Cmd
	service *rpc.Client
	exited  chan struct{} // closed when the present run has ended
	closed  bool
}

// call calls a method of the program.
func (c *container) call(ctx context.Context, method string, arg, reply any) error {
	call := c.service.Go("Container."+method, arg, reply, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
		if call.Error != nil {
			return fmt.Errorf("container %s: %w", c.name, call.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %s: %s: %w", c.name, method, ctx.Err())
	}
}

func (c *container) do(ctx context.Context, method string) error {
	return c.call(ctx, method, true, new(bool))
}

// end ends the program.
func (c *container) end() {
	_ = c.service.Close()
	_ = c.cmd.Wait()
}

// Start creates the container if there is none, and starts it.
func (c *container) Start(ctx context.Context) error {
	if err := c.do(ctx, "Start"); err != nil {
		return err
	}
	exited := make(chan struct{})
	c.exited = exited
	go func() { // ends with the run, or with the program
		defer close(exited)
		_ = c.do(context.Background(), "Wait")
	}()
	return nil
}

// Stop asks the program to end; the engine kills it after ten seconds.
func (c *container) Stop(ctx context.Context) error { return c.gone(c.do(ctx, "Stop")) }

// Kill sends SIGKILL.
func (c *container) Kill() error { return c.gone(c.do(context.Background(), "Kill")) }

// gone waits for the news that the run has ended.
func (c *container) gone(err error) error {
	if err == nil {
		<-c.exited
	}
	return err
}

// Pause freezes every process of the container.
func (c *container) Pause() error { return c.do(context.Background(), "Pause") }

// Resume lets a frozen container go on.
func (c *container) Resume() error { return c.do(context.Background(), "Resume") }

// Wipe removes the container, and with it the data.
func (c *container) Wipe() error { return c.do(context.Background(), "Wipe") }

// Exited is closed when the container has ended.
func (c *container) Exited() <-chan struct{} { return c.exited }

// Tail returns the end of the container's log.
func (c *container) Tail() string {
	var log string
	if err := c.call(context.Background(), "Tail", true, &log); err != nil {
		return err.Error()
	}
	return log
}

// Close removes the container.
func (c *container) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	defer c.end()
	return c.do(context.Background(), "Close")
}
