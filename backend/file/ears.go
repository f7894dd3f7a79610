package file

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// What is said to a process: one byte, followed by the nonce that it is about.
const (
	sayTake  = 't' // the lock is free for you
	sayWatch = 'w' // the one before you has been told to take it: see whether it does
	sayLost  = 'l' // your lock was broken
)

const (
	earPrefix, earSuffix = "wake-", ".sock"

	maxSocketPath = 100                  // systems allow 104 to 108 bytes
	sayLimit      = 5 * time.Millisecond // a process that reads nothing is not waited for
	staleAfter    = time.Minute          // a younger socket may be in the making
)

// ears is how this driver's waiters and holders are told things: directly
// by the driver itself, and by datagrams to a socket that is opened when the first request waits.
type ears struct {
	dir string
	off bool // no sockets
	// verify tells a holder of its loss, if the state says so.
	verify func(*backend.Request)

	mu     sync.Mutex
	closed bool
	conn   *net.UnixConn // nil: none, or it failed
	name   string        // of the socket's file; empty without conn
	reader sync.WaitGroup
	root   *os.File                    // the directory, for short paths
	waits  map[string]*ear             // by nonce
	holds  map[string]*backend.Request // by nonce; some only ask yet
}

// ear is one request that waits in this driver.
type ear struct {
	wake  chan struct{}
	watch *time.Timer
}

func newEars(dir string, off bool, verify func(*backend.Request)) *ears {
	return &ears{
		dir: dir, off: off, verify: verify,
		waits: map[string]*ear{}, holds: map[string]*backend.Request{},
	}
}

// expect makes r known, so that it hears of its loss; forget undoes it.
func (s *ears) expect(r *backend.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[r.Nonce] = r
}

func (s *ears) forget(nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.holds, nonce)
}

// wait makes a waiter known, whose channel gets what is said to it; leave undoes it.
func (s *ears) wait(nonce string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := &ear{wake: make(chan struct{}, 1)}
	s.waits[nonce] = e
	return e.wake
}

func (s *ears) leave(nonce string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.waits[nonce]; e != nil && e.watch != nil {
		e.watch.Stop()
	}
	delete(s.waits, nonce)
}

// address returns the socket's file name if it is open; empty if not.
func (s *ears) address() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.name
}

// say tells the request of a nonce something; socket is the address that its
// process gave. It reports whether that process is surely gone.
func (s *ears) say(what byte, nonce, socket string) (gone bool) {
	if s.hear(what, nonce) || socket == "" {
		return false
	}
	s.mu.Lock()
	path, err := s.reach(socket)
	s.mu.Unlock()
	if err != nil {
		return false
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	switch {
	case err == nil:
	case errors.Is(err, syscall.ECONNREFUSED):
		_ = os.Remove(filepath.Join(s.dir, socket)) // left by a dead process; if it stays, no harm
		return true
	default:
		return errors.Is(err, fs.ErrNotExist)
	}
	defer func() { _ = conn.Close() }()
	// What is lost here the floor timer makes good.
	_ = conn.SetWriteDeadline(time.Now().Add(sayLimit))
	_, _ = conn.Write(append([]byte{what}, nonce...))
	return false
}

// hear acts on what was said to a request of this driver, and reports whether
// there is one.
func (s *ears) hear(what byte, nonce string) bool {
	s.mu.Lock()
	r, e := s.holds[nonce], s.waits[nonce]
	if e != nil && what == sayWatch {
		if e.watch != nil {
			e.watch.Stop()
		}
		e.watch = time.AfterFunc(claim, e.look)
	}
	s.mu.Unlock()
	switch {
	case what == sayTake && e != nil:
		e.look()
	case what == sayLost && r != nil:
		s.verify(r)
	}
	return e != nil || r != nil
}

// look makes the waiter look; once is enough for any number of calls.
func (e *ear) look() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// open opens the socket if there is none, or its file is gone, and returns its
// file name; empty if there can be none.
func (s *ears) open() string {
	if s.off || runtime.GOOS == "windows" {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		if _, err := os.Lstat(filepath.Join(s.dir, s.name)); err == nil {
			return s.name
		}
		s.shut() // somebody tidied up: nobody could reach us there
	}
	if s.closed {
		return ""
	}
	s.tidy()
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	name := fmt.Sprintf("%s%d-%s%s", earPrefix, os.Getpid(), hex.EncodeToString(id[:]), earSuffix)
	path, err := s.reach(name)
	if err != nil {
		return ""
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return ""
	}
	_ = os.Chmod(filepath.Join(s.dir, name), 0o600) // the directory guards it already
	s.conn, s.name = conn, name
	s.reader.Go(func() { s.read(conn) })
	return name
}

// read passes on what is said, until the socket is closed.
func (s *ears) read(conn *net.UnixConn) {
	var buf [128]byte
	for {
		n, err := conn.Read(buf[:])
		if err != nil {
			break
		}
		if n > 1 {
			s.hear(buf[0], string(buf[1:n]))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == conn { // it failed: the next waiter opens another one
		s.shut()
	}
}

// shut closes the socket and removes its file. The caller holds mu.
func (s *ears) shut() {
	if s.conn == nil {
		return
	}
	_ = s.conn.Close()
	_ = os.Remove(filepath.Join(s.dir, s.name)) // if it stays, others remove it
	s.conn, s.name = nil, ""
}

// reach returns a path of the socket file that is short enough for the system.
// The caller holds mu.
func (s *ears) reach(name string) (string, error) {
	path := filepath.Join(s.dir, name)
	if len(path) <= maxSocketPath {
		return path, nil
	}
	if runtime.GOOS != "linux" {
		return "", errors.ErrUnsupported
	}
	if s.root == nil {
		root, err := os.Open(s.dir)
		if err != nil {
			return "", err
		}
		s.root = root
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", s.root.Fd(), name), nil
}

// tidy removes the sockets of dead processes. The caller holds mu.
func (s *ears) tidy() {
	found, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, f := range found {
		if !isEar(f.Name()) {
			continue
		}
		if info, err := f.Info(); err != nil || time.Since(info.ModTime()) < staleAfter {
			continue
		}
		path, err := s.reach(f.Name())
		if err != nil {
			return
		}
		conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
		switch {
		case err == nil:
			_ = conn.Close()
		case errors.Is(err, syscall.ECONNREFUSED):
			_ = os.Remove(filepath.Join(s.dir, f.Name())) // if it stays, no harm
		}
	}
}

// isEar reports whether a file name is that of a socket of ours.
func isEar(name string) bool {
	return strings.HasPrefix(name, earPrefix) && strings.HasSuffix(name, earSuffix) && plain(name) && !strings.Contains(name, "/")
}

// close ends the reader, and waits for it.
func (s *ears) close() {
	s.mu.Lock()
	s.closed = true
	s.shut()
	if s.root != nil {
		_ = s.root.Close() // it was only read
		s.root = nil
	}
	s.mu.Unlock()
	s.reader.Wait()
}
