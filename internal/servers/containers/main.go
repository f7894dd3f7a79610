// Containers runs one container for the tests that start it, and speaks with them by [net/rpc] over
// its standard input and output. The container is removed when the input ends. It is a program and a
// module of its own so that the drivers do not require what it needs.
package main

import (
	"context"
	"errors"
	"io"
	"net/rpc"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// errMissing is matched by the error of an engine or an image that is not there.
var errMissing = errors.New("not available here")

// startTimeout bounds a call that may pull an image.
const startTimeout = 8 * time.Minute

// Spec is what to run, as the caller's container.go has it.
type Spec struct {
	Store, Name, Image string
	Args, Env          []string
	Dir, Data          string
	StopSignal         syscall.Signal
}

// service has the methods that the caller calls. An argument or reply that carries nothing is a bool.
type service struct{ c *container }

// Prepare must come first. missing reports that the error is one of something that is not there.
func (s *service) Prepare(what Spec, missing *string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	c, err := prepare(ctx, what)
	if errors.Is(err, errMissing) {
		*missing = err.Error()
		return nil
	}
	s.c = c
	return err
}

func (s *service) Start(bool, *bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return s.c.Start(ctx)
}

// Wait returns when the present run has ended.
func (s *service) Wait(bool, *bool) error {
	<-s.c.exited
	return nil
}

func (s *service) Stop(bool, *bool) error   { return s.c.Stop(context.Background()) }
func (s *service) Kill(bool, *bool) error   { return s.c.Kill() }
func (s *service) Pause(bool, *bool) error  { return s.c.Pause() }
func (s *service) Resume(bool, *bool) error { return s.c.Resume() }
func (s *service) Wipe(bool, *bool) error   { return s.c.Wipe() }
func (s *service) Close(bool, *bool) error  { return s.c.Close() }

func (s *service) Tail(_ bool, log *string) error {
	*log = s.c.Tail()
	return nil
}

func main() {
	signal.Ignore(os.Interrupt) // the caller gets it too, and closes
	s := &service{}
	server := rpc.NewServer()
	if err := server.RegisterName("Container", s); err != nil {
		panic(err)
	}
	server.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	if s.c != nil {
		_ = s.c.Close() // the caller has gone
	}
}
