package stores

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
)

// Server is one process of a store. Its address stays the same through every restart. Its methods are for one
// goroutine at a time, except those that only return what it is.
type Server struct {
	store   string
	kind    string
	addr    string
	url     string
	version string
	caFile  string
	tls     *tls.Config
	dir     string
	ports   *ports
	process Process
	up      atomic.Bool // it runs and is not paused
	ready   func(context.Context) error
	probe   func(context.Context) (string, error) // the version
}

// newServer makes a server with a folder of its own, which goes again if fill fails.
func newServer(store string, l Launcher, port int, fill func(*Server) error) (*Server, error) {
	dir, err := os.MkdirTemp("", "fencelock-"+store+"-")
	if err != nil {
		return nil, err
	}
	s := &Server{store: store, kind: l.Kind(), addr: loopback(port), dir: dir}
	if err := fill(s); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// Store is the backend's name, such as "redis".
func (s *Server) Store() string { return s.store }

// Kind is "local" or "container".
func (s *Server) Kind() string { return s.kind }

// Addr is the host and port at which clients reach it.
func (s *Server) Addr() string { return s.addr }

// URL is the address as this project's drivers take it, with the password if there is one.
func (s *Server) URL() string { return s.url }

// Version is what the server called itself when it was started for the first time.
func (s *Server) Version() string { return s.version }

// CAFile is the certificate of the authority that signed the server's, in PEM; empty without TLS.
func (s *Server) CAFile() string { return s.caFile }

// TLSConfig trusts the server's certificate; nil without TLS.
func (s *Server) TLSConfig() *tls.Config { return s.tls.Clone() }

// Dir is the folder with its configuration, log and, for a local one, its data.
func (s *Server) Dir() string { return s.dir }

// Tail is the end of its log.
func (s *Server) Tail() string { return s.process.Tail() }

// String names the server for logs: "redis 7.0.15 local 127.0.0.1:16379".
func (s *Server) String() string {
	return fmt.Sprintf("%s %s %s %s", s.store, s.version, s.kind, s.addr)
}

// Start starts a server that was stopped or killed, with its data, and returns when it answers.
func (s *Server) Start() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := s.launch(ctx); err != nil {
		return err
	}
	return s.await(ctx)
}

// launch starts the process without waiting for it to be ready: members of a cluster need each other.
func (s *Server) launch(ctx context.Context) error {
	if err := s.process.Start(ctx); err != nil {
		return fmt.Errorf("%s %s: %w", s.store, s.addr, err)
	}
	s.up.Store(true)
	return nil
}

// until waits until check returns nil, as long as the program runs.
func (s *Server) until(ctx context.Context, check func(context.Context) error) error {
	if err := await(ctx, s.process.Exited(), check); err != nil {
		return fmt.Errorf("%s %s: %w; its log ends with:\n%s", s.store, s.addr, err, s.Tail())
	}
	return nil
}

func (s *Server) await(ctx context.Context) error {
	if err := s.until(ctx, s.ready); err != nil {
		return err
	}
	if s.version != "" {
		return nil
	}
	version, err := s.probe(ctx)
	if err != nil {
		return fmt.Errorf("%s %s: version: %w", s.store, s.addr, err)
	}
	s.version = version
	return nil
}

// Ready returns nil if the server answers now.
func (s *Server) Ready(ctx context.Context) error { return s.ready(ctx) }

// Stop asks the server to end, as an operator would, and returns when it is gone.
func (s *Server) Stop() error {
	s.up.Store(false)
	return s.process.Stop(context.Background())
}

// Kill ends the server with SIGKILL and returns when it is gone. Its writes to the operating system survive:
// this is a crash of the program, not of the machine.
func (s *Server) Kill() error {
	s.up.Store(false)
	return s.process.Kill()
}

// Pause stops the server with SIGSTOP: connections stay open, new ones are accepted by the kernel, nothing is answered.
func (s *Server) Pause() error {
	s.up.Store(false)
	return s.process.Pause()
}

// Resume lets a paused server go on; it then works through all that arrived meanwhile.
func (s *Server) Resume() error {
	if err := s.process.Resume(); err != nil {
		return err
	}
	s.up.Store(true)
	return nil
}

// Restart kills the server and starts it again at the same address, with what it had stored or with nothing.
func (s *Server) Restart(keepData bool) error {
	if err := s.Kill(); err != nil {
		return err
	}
	if !keepData {
		if err := s.Wipe(); err != nil {
			return err
		}
	}
	return s.Start()
}

// Wipe removes the data of a server that is not running.
func (s *Server) Wipe() error { return s.process.Wipe() }

// Close kills the server and removes its folder. It may be called again.
func (s *Server) Close() error {
	s.up.Store(false)
	err := s.process.Close()
	if s.ports != nil {
		err = errors.Join(err, s.ports.release())
		s.ports = nil
	}
	return errors.Join(err, os.RemoveAll(s.dir))
}
