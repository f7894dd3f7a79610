package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	apicontainer "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
)

// engineTimeout bounds one request to the container engine.
const engineTimeout = 30 * time.Second

// prepare pulls the image if it must. The container is created by the first start.
func prepare(ctx context.Context, s Spec) (*container, error) {
	if err := configure(); err != nil {
		return nil, err
	}
	provider, err := connectEngine(ctx)
	if err != nil {
		return nil, err
	}
	if s.Image == "" {
		return nil, errors.Join(fmt.Errorf("image of %s is %w", s.Store, errMissing), provider.Close())
	}
	if err := obtain(ctx, provider.Client(), s.Image); err != nil {
		return nil, errors.Join(err, provider.Close())
	}
	ended := make(chan struct{})
	close(ended)
	return &container{provider: provider, engine: provider.Client(), spec: s, exited: ended}, nil
}

// container is one container at a time: losing the data means a new one.
type container struct {
	provider *testcontainers.DockerProvider
	engine   client.APIClient
	spec     Spec
	id       string        // empty as long as there is none
	exited   chan struct{} // closed when the present run has ended
	closed   bool
}

// Start creates the container if there is none, and starts it.
func (c *container) Start(ctx context.Context) error {
	if c.running() {
		return fmt.Errorf("container %s is running already", c.spec.Name)
	}
	if c.id == "" {
		if err := c.create(ctx); err != nil {
			return err
		}
	}
	if _, err := c.engine.ContainerStart(ctx, c.id, client.ContainerStartOptions{}); err != nil {
		return err
	}
	// The method that ends the run waits for exited, and so for this goroutine. The engine reports every end of a run.
	exited, id := make(chan struct{}), c.id
	go func() {
		defer close(exited)
		wait := c.engine.ContainerWait(context.Background(), id, client.ContainerWaitOptions{
			Condition: apicontainer.WaitConditionNotRunning,
		})
		select {
		case <-wait.Result:
		case <-wait.Error: // the container or the engine is gone
		}
	}()
	c.exited = exited
	return nil
}

// create makes the container, with the files of the server's folder in it.
func (c *container) create(ctx context.Context) error {
	files, err := c.files()
	if err != nil {
		return err
	}
	env := map[string]string{}
	for _, e := range c.spec.Env {
		name, value, _ := strings.Cut(e, "=")
		env[name] = value
	}
	made, err := c.provider.CreateContainer(ctx, testcontainers.ContainerRequest{
		Image: c.spec.Image,
		// The images' own entry points change the user and the folders; the programs need neither.
		Entrypoint: c.spec.Args[:1],
		Cmd:        c.spec.Args[1:],
		Env:        env,
		Files:      files,
		ConfigModifier: func(config *apicontainer.Config) {
			config.User = "0"
			config.WorkingDir = "/"
			config.StopSignal = "SIGTERM"
			if c.spec.StopSignal != 0 {
				config.StopSignal = strconv.Itoa(int(c.spec.StopSignal))
			}
		},
		HostConfigModifier: func(host *apicontainer.HostConfig) { host.NetworkMode = "host" },
	})
	if err != nil {
		return err
	}
	c.id = made.GetContainerID()
	return nil
}

// files lists what is in the server's folder, and an empty file that makes the data folder exist.
func (c *container) files() ([]testcontainers.ContainerFile, error) {
	var files []testcontainers.ContainerFile
	add := func(name string, content io.Reader) {
		files = append(files, testcontainers.ContainerFile{
			HostFilePath: name, ContainerFilePath: filepath.ToSlash(name), Reader: content, FileMode: 0o644,
		})
	}
	err := filepath.WalkDir(c.spec.Dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			add(name, nil)
		}
		return err
	})
	if c.spec.Data != "" {
		add(filepath.Join(c.spec.Data, ".keep"), strings.NewReader(""))
	}
	return files, err
}

func (c *container) running() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// Stop asks the program to end; the engine kills it after ten seconds.
func (c *container) Stop(ctx context.Context) error {
	if !c.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if err := c.unpause(ctx); err != nil {
		return err
	}
	_, err := c.engine.ContainerStop(ctx, c.id, client.ContainerStopOptions{})
	return errors.Join(err, c.await(ctx))
}

// Kill sends SIGKILL.
func (c *container) Kill() error {
	if !c.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	// An engine may refuse to kill a paused container, and some deliver the signal only when it goes on.
	_, err := c.engine.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: "KILL"})
	if paused := c.unpause(ctx); paused != nil {
		return paused
	}
	if err != nil && c.running() {
		if _, err := c.engine.ContainerKill(ctx, c.id, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
			return err
		}
	}
	return c.await(ctx)
}

// await waits until the run has ended.
func (c *container) await(ctx context.Context) error {
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("container %s does not end: %w", c.spec.Name, ctx.Err())
	}
}

// Pause freezes every process of the container.
func (c *container) Pause() error {
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	_, err := c.engine.ContainerPause(ctx, c.id, client.ContainerPauseOptions{})
	return err
}

// Resume lets a frozen container go on.
func (c *container) Resume() error {
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	return c.unpause(ctx)
}

// unpause lets the container go on if it is frozen.
func (c *container) unpause(ctx context.Context) error {
	got, err := c.engine.ContainerInspect(ctx, c.id, client.ContainerInspectOptions{})
	if err != nil || !got.Container.State.Paused {
		return err
	}
	_, err = c.engine.ContainerUnpause(ctx, c.id, client.ContainerUnpauseOptions{})
	return err
}

// Wipe removes the container, and with it the data.
func (c *container) Wipe() error {
	if c.running() {
		return fmt.Errorf("container %s is running: its data stays", c.spec.Name)
	}
	if c.id == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	_, err := c.engine.ContainerRemove(ctx, c.id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if err == nil {
		c.id = ""
	}
	return err
}

// Tail returns the end of the container's log.
func (c *container) Tail() string {
	if c.id == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), engineTimeout)
	defer cancel()
	log, err := c.engine.ContainerLogs(ctx, c.id, client.ContainerLogsOptions{
		ShowStdout: true, ShowStderr: true, Tail: "20",
	})
	if err != nil {
		return err.Error()
	}
	defer log.Close()
	b, err := io.ReadAll(log)
	if err != nil {
		return err.Error()
	}
	return string(withoutHeaders(b))
}

// withoutHeaders removes the eight bytes that the engine puts before each piece of a log.
func withoutHeaders(b []byte) []byte {
	var text bytes.Buffer
	for len(b) >= 8 {
		n := int(b[4])<<24 | int(b[5])<<16 | int(b[6])<<8 | int(b[7])
		b = b[8:]
		n = min(n, len(b))
		text.Write(b[:n])
		b = b[n:]
	}
	return text.Bytes()
}

// Close removes the container.
func (c *container) Close() error {
	if c.closed {
		return nil
	}
	c.closed = true
	return errors.Join(c.Kill(), c.Wipe(), c.provider.Close())
}
