package file

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/fencelock/fencelock/backend"
)

const (
	socketNames = "wake-*.sock"
	maxDir      = 60 // and 40 of the name: systems allow 104 to 108 bytes
)

// hub wakes waiters: those of its driver directly, and others by a datagram to the socket of their
// process, in which stands when they are to look, in ms, and their nonce.
type hub struct {
	dir  string
	base string // the directory, by a path that is short enough; empty: no sockets
	off  bool   // none of its own: others' are told

	root *os.File // of base, if that is not dir

	mu     sync.Mutex
	conn   *net.UnixConn  // opened when the first waiter enters
	name   string         // of its file; empty without conn
	reader sync.WaitGroup // of conn
	claims map[string]*backend.Claim
}

func newHub(dir string, off bool) *hub {
	h := &hub{dir: dir, off: off, claims: map[string]*backend.Claim{}}
	switch {
	case runtime.GOOS == "windows":
	case len(dir) <= maxDir:
		h.base = dir
	case runtime.GOOS == "linux":
		if root, err := os.Open(dir); err == nil {
			h.root, h.base = root, fmt.Sprintf("/proc/self/fd/%d", root.Fd())
		}
	}
	return h
}

// isSocket reports whether a file name is that of a socket of ours, or empty.
func isSocket(name string) bool {
	ours, _ := filepath.Match(socketNames, name) // the pattern is right
	return ours || name == ""
}

func (h *hub) address(name string) *net.UnixAddr {
	return &net.UnixAddr{Name: filepath.Join(h.base, name), Net: "unixgram"}
}

// enter makes a waiter known, opens the socket if there is none or its file is gone, and returns
// the name of its file; empty if there can be none.
func (h *hub) enter(c *backend.Claim) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claims[c.Nonce] = c
	if h.conn != nil {
		if _, err := os.Lstat(filepath.Join(h.dir, h.name)); err == nil {
			return h.name
		}
		h.shut() // somebody tidied up: nobody could reach us there
	}
	if h.base == "" || h.off {
		return ""
	}
	h.tidy()
	id := fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()[:12])
	name := strings.Replace(socketNames, "*", id, 1)
	conn, err := net.ListenUnixgram("unixgram", h.address(name))
	if err != nil {
		return ""
	}
	_ = os.Chmod(filepath.Join(h.dir, name), 0o600) // the directory guards it already
	h.conn, h.name = conn, name
	h.reader.Go(func() { h.read(conn) })
	return name
}

// leave undoes what enter did for a waiter.
func (h *hub) leave(c *backend.Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.claims, c.Nonce)
}

// tell makes waiters look. It returns the sockets of those whose process is surely gone.
func (h *hub) tell(wakes []wakeUp) (gone []string) {
	for _, w := range wakes {
		if h.wake(w.nonce, w.in) || w.socket == "" || h.base == "" {
			continue
		}
		conn, dead := h.dial(w.socket)
		if dead {
			gone = append(gone, w.socket)
		}
		if conn != nil {
			// A process that reads nothing is not waited for: it looks by itself.
			_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Millisecond))
			_, _ = fmt.Fprintf(conn, "%d %s", w.in.Milliseconds(), w.nonce)
			_ = conn.Close()
		}
	}
	return gone
}

// wake makes a waiter of this driver look, and reports whether there is such a one.
func (h *hub) wake(nonce string, in time.Duration) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.claims[nonce]
	if c != nil {
		c.Wake(in)
	}
	return c != nil
}

// dial connects to a socket, whose file it removes if the process that made it is dead.
func (h *hub) dial(name string) (conn *net.UnixConn, dead bool) {
	conn, err := net.DialUnix("unixgram", nil, h.address(name))
	if errors.Is(err, syscall.ECONNREFUSED) {
		_ = os.Remove(filepath.Join(h.dir, name)) // if it stays, no harm
		return nil, true
	}
	return conn, errors.Is(err, fs.ErrNotExist)
}

// read wakes those whom others name, until the socket is closed.
func (h *hub) read(conn *net.UnixConn) {
	var buf [128]byte
	for n, err := conn.Read(buf[:]); err == nil; n, err = conn.Read(buf[:]) {
		in, nonce, _ := strings.Cut(string(buf[:n]), " ")
		if ms, err := strconv.Atoi(in); err == nil {
			h.wake(nonce, time.Duration(ms)*time.Millisecond)
		}
	}
}

// shut closes the socket and removes its file. The caller holds mu.
func (h *hub) shut() {
	if h.conn == nil {
		return
	}
	_ = h.conn.Close()
	_ = os.Remove(filepath.Join(h.dir, h.name)) // if it stays, others remove it
	h.conn, h.name = nil, ""
}

// tidy removes the sockets of dead processes.
func (h *hub) tidy() {
	found, _ := os.ReadDir(h.dir)
	for _, f := range found {
		if !isSocket(f.Name()) {
			continue
		}
		if conn, _ := h.dial(f.Name()); conn != nil {
			_ = conn.Close()
		}
	}
}

// close ends the reader, and waits for it.
func (h *hub) close() {
	h.mu.Lock()
	h.shut()
	h.mu.Unlock()
	h.reader.Wait()
	_ = h.root.Close() // if it was opened, it was only read
}
