package zookeeper

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// greetMost bounds the opening of a session on a connection.
	greetMost = 2 * time.Second
	// silentMost is how long a request may go unanswered before its connection is given up for another.
	silentMost = 3 * time.Second
)

// The parts of ZooKeeper's protocol that a wire looks at: the number of a ping, and the
// operations that go through the leader.
const pingXid = -2

func isWrite(op int32) bool {
	switch op {
	case 1, 2, 5, 14, 19: // create, delete, setData, multi, createContainer
		return true
	}
	return false
}

// wire is a session's connection to a server. It passes everything on, and looks at the beginning of each
// frame: so the session knows until when the server surely keeps it, which the client library does not
// tell. It also keeps a connection that does not answer from being waited for.
//
// The client library writes each frame with one Write. It reads each with two Reads, for which there is a buffer.
type wire struct {
	net.Conn
	s  *session
	in *bufio.Reader

	mu       sync.Mutex
	written  bool // the first frame, which asks for a session
	greeted  bool // and its answer was read
	closed   bool
	sent     []stamp // not answered yet
	watchdog *time.Timer

	// Of the frame that is being read, by the one goroutine that reads.
	head []byte // its first bytes
	left int    // how many bytes of it are still to come after head
}

// stamp is a request that was sent.
type stamp struct {
	xid   int32
	write bool
	at    backend.Instant
}

// Write notes when a request leaves. A ping of a session that nobody uses stays here: nothing is to be kept alive.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	st := stamp{at: backend.Now()}
	if w.written && len(p) >= 12 {
		st.xid = int32(binary.BigEndian.Uint32(p[4:]))
		st.write = isWrite(int32(binary.BigEndian.Uint32(p[8:])))
		if st.xid == pingXid && w.s.unused() {
			w.mu.Unlock()
			return len(p), nil
		}
	}
	if !w.written && w.s.forgetful() {
		p = withoutHistory(p)
	}
	w.written = true
	w.sent = append(w.sent, st)
	if w.watchdog == nil && !w.closed {
		w.watchdog = time.AfterFunc(silentMost, w.watch)
	}
	w.mu.Unlock()
	n, err := w.Conn.Write(p)
	if err != nil { // the library hands it on to the caller: all or nothing of the request may have left
		err = fmt.Errorf("%w: %w", zk.ErrConnectionClosed, err)
	}
	return n, err
}

// watch closes a connection on which a request has gone unanswered for too long.
func (w *wire) watch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchdog = nil
	if len(w.sent) == 0 || w.closed {
		return
	}
	if left := silentMost - w.sent[0].at.Elapsed(); left > 0 {
		w.watchdog = time.AfterFunc(left, w.watch)
		return
	}
	_ = w.Conn.Close() // it is useless
}

// Read looks at the frames that come in.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.in.Read(p)
	w.feed(p[:n])
	if err != nil {
		w.ended(err)
	}
	return n, err
}

// ended notes a server that hung up instead of greeting.
func (w *wire) ended(err error) {
	w.mu.Lock()
	refused := w.written && !w.greeted && !w.closed && !errors.Is(err, os.ErrDeadlineExceeded)
	w.mu.Unlock()
	if refused {
		w.s.refused()
	}
}

// withoutHistory takes out of a request for a session what the client has seen last: its length and the
// protocol come before that.
func withoutHistory(p []byte) []byte {
	const from, to = 8, 16
	if len(p) < to {
		return p
	}
	p = slices.Clone(p)
	clear(p[from:to])
	return p
}

// feed takes in what was read: frames of a length and as many bytes.
func (w *wire) feed(p []byte) {
	const most = 20 // what is looked at: the length, and 16 bytes
	for len(p) > 0 {
		if w.left > 0 {
			n := min(w.left, len(p))
			w.left -= n
			p = p[n:]
			continue
		}
		w.head = append(w.head, p[0])
		p = p[1:]
		if len(w.head) < 4 {
			continue
		}
		size := int(binary.BigEndian.Uint32(w.head))
		if len(w.head) < min(4+size, most) {
			continue
		}
		w.left = 4 + size - len(w.head)
		w.frame(w.head[4:])
		w.head = w.head[:0]
	}
}

// frame takes in the beginning of a frame: the greeting's protocol, timeout and session, or a reply's number.
func (w *wire) frame(b []byte) {
	if len(b) < 4 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.greeted {
		w.greeted = true
		if len(b) >= 16 && len(w.sent) > 0 {
			w.s.greeted(w.sent[0].at, time.Duration(binary.BigEndian.Uint32(b[4:]))*time.Millisecond, int64(binary.BigEndian.Uint64(b[8:])))
		}
		w.sent = w.sent[:0]
		return
	}
	xid := int32(binary.BigEndian.Uint32(b))
	for i, st := range w.sent {
		if st.xid == xid {
			w.sent = append(w.sent[:i], w.sent[i+1:]...)
			w.s.answered(st.at, st.write)
			return
		}
	}
}

// SetReadDeadline bounds the wait for the greeting: the client library would wait for several times the session.
func (w *wire) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	greeted := w.greeted
	w.mu.Unlock()
	if most := time.Now().Add(greetMost); !greeted && t.After(most) {
		t = most
	}
	return w.Conn.SetReadDeadline(t)
}

// Close ends the watchdog too.
func (w *wire) Close() error {
	w.mu.Lock()
	w.closed = true
	if w.watchdog != nil {
		w.watchdog.Stop()
		w.watchdog = nil
	}
	w.mu.Unlock()
	return w.Conn.Close()
}
