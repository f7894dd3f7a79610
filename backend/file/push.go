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
	dir string
	off bool // no socket of its own: others' are told

	mu     sync.Mutex
	conn   *net.UnixConn  // opened when the first waiter enters
	name   string         // of its file; empty without conn
	reader sync.WaitGroup // of conn
	claims map[string]*backend.Claim
}

func newHub(dir string, off bool) *hub {
	none := runtime.GOOS == "windows" || runtime.GOOS != "linux" && len(dir) > maxDir
	return &hub{dir: dir, off: off || none, claims: map[string]*backend.Claim{}}
}

// isSocket reports whether a file name is a socket's of ours, or empty.
func isSocket(name string) bool {
	ours, _ := filepath.Match(socketNames, name) // the pattern is right
	return ours || name == ""
}

// reach opens a socket by its address: a path that is short enough, of the directory that is there now.
func (h *hub) reach(
	name string, open func(network string, at *net.UnixAddr) (*net.UnixConn, error),
) (*net.UnixConn, error) {
	dir := h.dir
	if len(dir) > maxDir && runtime.GOOS == "linux" {
		root, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		dir = fmt.Sprintf("/proc/self/fd/%d", root.Fd())
	}
	return open("unixgram", &net.UnixAddr{Name: filepath.Join(dir, name), Net: "unixgram"})
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
	if h.off {
		return ""
	}
	h.tidy()
	id := fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()[:12])
	name := strings.Replace(socketNames, "*", id, 1)
	conn, err := h.reach(name, net.ListenUnixgram)
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
		if h.wake(w.nonce, w.in) || w.socket == "" {
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
	conn, err := h.reach(name, func(network string, at *net.UnixAddr) (*net.UnixConn, error) {
		return net.DialUnix(network, nil, at)
	})
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
}
