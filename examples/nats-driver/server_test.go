package natskv_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// secret is the password of the user app. No message may show it.
const secret = "pa55:of/nats@test"

// natsServer is a NATS server with JetStream in a process of its own. It implements
// conformance.Server.
type natsServer struct {
	program, dir, addr string
	cmd                *exec.Cmd
}

func startNATS(t *testing.T) *natsServer {
	t.Helper()
	program := filepath.Join(t.TempDir(), "nats-server")
	out, err := exec.Command("go", "build", "-o", program,
		"github.com/nats-io/nats-server/v2").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &natsServer{program: program, dir: t.TempDir(), addr: l.Addr().String()}
	must(t, l.Close())
	must(t, s.Start())
	t.Cleanup(func() { _ = s.Kill() })
	return s
}

// connect returns a connection that knows nothing of locks.
func (s *natsServer) connect(t *testing.T) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.addr, nats.UserInfo("app", secret), nats.MaxReconnects(-1))
	must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

func (s *natsServer) stream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(s.connect(t))
	must(t, err)
	return js
}

func (s *natsServer) Start() error {
	host, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	s.cmd = exec.Command(s.program, "-a", host, "-p", port, "-user", "app", "-pass", secret,
		"-js", "-sd", s.dir)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
		var nc *nats.Conn
		if nc, err = nats.Connect(s.addr, nats.UserInfo("app", secret)); err == nil {
			nc.Close()
			return nil
		}
	}
	return fmt.Errorf("the NATS server has not started: %w", err)
}

func (s *natsServer) Kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = s.cmd.Wait() // it was killed: that is the error
	return nil
}

func (s *natsServer) Stop() error     { return s.Kill() }
func (s *natsServer) Pause() error    { return s.cmd.Process.Signal(syscall.SIGSTOP) }
func (s *natsServer) Resume() error   { return s.cmd.Process.Signal(syscall.SIGCONT) }
func (s *natsServer) Wipe() error     { return os.RemoveAll(s.dir) }
func (s *natsServer) KeepsData() bool { return true }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
