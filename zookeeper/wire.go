package zookeeper

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

const (
	// greetMost bounds the opening of a session on a connection.
	greetMost = 2 * time.Second
	// silentMost is how long a request may go unanswered before its connection is given up for
	// another.
	silentMost = 3 * time.Second
	// watchMost is how long a new connection waits for the client library to set its watches again.
	watchMost = 100 * time.Millisecond
	// frameLeast is what each answer begins with. The client library panics at less.
	frameLeast = 16
	// frameMost is what it makes room for, whatever a length says: the list of 170,000 of the longest names.
	frameMost = 256 << 20
)

// The parts of ZooKeeper's protocol that a wire looks at: where a request for a session has what
// the client has seen last and how long the session is to be, and operations.
const (
	zxidAt    = 8
	timeoutAt = 16

	opGetData     = 4
	opGetChildren = 12
	opSetAuth     = 100
	opSetWatches  = 101
)

// isWrite reports whether an operation goes through the leader.
func isWrite(op int32) bool {
	// create, delete, setData, multi, createContainer
	return op == 1 || op == 2 || op == 5 || op == 14 || op == 19
}

// wire is a session's connection to a server. It looks at the beginning of each frame: so the
// session knows until when the server surely keeps it, which the client library does not tell. It
// also keeps a connection that does not answer from being waited for.
//
// It passes everything on but for five things. The library pings three times in a session, which
// is not often enough: it is told of a shorter one than the servers are asked for. A failed
// sending of credentials is only seen as the end of the connection: told of it, go-zookeeper 1.0.4
// waits for itself for ever (flushRequests answers a request for the second time, for which there
// is no room). A session whose servers have lost their data asks without its history. A frame of a
// size that no answer has ends the connection, and so does an answer that counts more than its
// frame can hold: the library would end the program, or make room for all that. And the first
// answer waits for the watches to be set again: the library (1.0.4) reads what it has seen last for
// them while it notes what an answer shows it, without a lock.
//
// The client library writes each frame with one Write. It reads each with two Reads, for which
// there is a buffer.
type wire struct {
	net.Conn
	s      *session
	in     *bufio.Reader
	proven bool // the server had what the majority agreed on last, just before it was connected to

	greeting []byte // what is left to be read of it

	mu       sync.Mutex
	written  bool // the first frame, which asks for a session
	greeted  bool // and its answer was read
	closed   bool
	sent     []stamp         // not answered yet
	since    backend.Instant // since then the first of them is the next to be answered
	watchdog *time.Timer

	left    int              // bytes of the frame that is being read, by the one goroutine that does
	head    [frameLeast]byte // of that frame
	watches chan bool        // gets a value when watches are set; nil: the session has none
	watched sync.Once
}

// stamp is a request that was sent.
type stamp struct {
	xid, op int32
	at      backend.Instant
}

// Write notes when a request leaves.
func (w *wire) Write(p []byte) (int, error) {
	w.mu.Lock()
	st := stamp{at: backend.Now()}
	switch {
	case !w.written:
		p = w.s.asking(p)
	case len(p) >= 12:
		st.xid = int32(binary.BigEndian.Uint32(p[4:]))
		st.op = int32(binary.BigEndian.Uint32(p[8:]))
	}
	if st.op == opSetWatches {
		select {
		case w.watches <- true:
		default:
		}
	}
	w.written = true
	if len(w.sent) == 0 {
		w.since = st.at
	}
	w.sent = append(w.sent, st)
	if w.watchdog == nil && !w.closed {
		w.watchdog = time.AfterFunc(w.s.patience(silentMost), w.watch)
	}
	w.mu.Unlock()
	n, err := w.Conn.Write(p)
	switch {
	case err != nil && st.op == opSetAuth:
		_ = w.Conn.Close() // the reader finds the end
		return len(p), nil
	case err != nil: // the caller is told: all or nothing of the request may have left
		err = fmt.Errorf("%w: %w", zk.ErrConnectionClosed, err)
	}
	return n, err
}

// watch closes a connection on which no answer has come for too long although one is due. The age
// of a request says less: it may have waited for the answers to many others.
func (w *wire) watch() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watchdog = nil
	if len(w.sent) == 0 || w.closed {
		return
	}
	if left := w.s.patience(silentMost) - w.since.Elapsed(); left > 0 {
		w.watchdog = time.AfterFunc(left, w.watch)
		return
	}
	w.s.silence()
	_ = w.Conn.Close() // it is useless
}

// Read looks at the frames that come in. The first is the greeting, which it reads as a whole.
func (w *wire) Read(p []byte) (int, error) {
	w.mu.Lock()
	greeted := w.greeted
	w.mu.Unlock()
	if !greeted {
		greeting, err := readGreeting(w.in)
		if err != nil {
			w.ended(err)
			return 0, err
		}
		w.frame(greeting[4:])
		binary.BigEndian.PutUint32(greeting[8:], uint32(w.s.told().Milliseconds()))
		w.greeting = greeting
	}
	if len(w.greeting) > 0 {
		n := copy(p, w.greeting)
		w.greeting = w.greeting[n:]
		return n, nil
	}
	if w.left == 0 {
		w.watched.Do(func() {
			if w.watches != nil {
				select {
				case <-w.watches:
				case <-time.After(watchMost):
				}
			}
		})
		if err := w.begin(); err != nil {
			w.ended(err)
			return 0, err
		}
	}
	n, err := w.in.Read(p[:min(len(p), w.left)])
	if w.left -= n; w.left == 0 {
		w.frame(w.head[:])
	} else if xid := int32(binary.BigEndian.Uint32(w.head[:])); xid >= 0 { // an answer, and no event
		w.mu.Lock()
		w.since = backend.Now() // more of it has come
		w.mu.Unlock()
	}
	if err != nil {
		w.ended(err)
	}
	return n, err
}

// begin looks at the next frame.
func (w *wire) begin() error {
	head, err := w.in.Peek(4)
	if err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head)
	if size < frameLeast || size > frameMost {
		return fmt.Errorf("the server sends a frame of %d bytes, want %d to %d", size, frameLeast, frameMost)
	}
	const counted = frameLeast + 4
	if head, err = w.in.Peek(4 + int(min(size, counted))); err != nil {
		return err
	}
	w.left = 4 + int(size)
	copy(w.head[:], head[4:])
	if size < counted {
		return nil
	}
	count, most := binary.BigEndian.Uint32(head[4+frameLeast:]), size-counted
	switch op := w.op(int32(binary.BigEndian.Uint32(head[4:]))); {
	case op == opGetChildren:
		most /= 4 // each has a length before it
	case op != opGetData || int32(count) < 0: // which says that there are no data
		return nil
	}
	if count > most {
		return fmt.Errorf("the server sends an answer of %d bytes that is said to have %d parts", size, count)
	}
	return nil
}

// op is the operation of a request that has not been answered; 0: there is none.
func (w *wire) op(xid int32) int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, st := range w.sent {
		if st.xid == xid {
			return st.op
		}
	}
	return 0
}

// ended notes that a connection is over: by a server that hung up instead of greeting, or that
// said nothing.
func (w *wire) ended(err error) {
	w.mu.Lock()
	asked := w.written && !w.greeted && !w.closed
	w.mu.Unlock()
	w.s.progress()
	switch {
	case !asked:
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.s.silence()
	default:
		w.s.refused(w.proven)
	}
}

// frame takes in the beginning of a frame that has come whole, 16 bytes at least: the greeting's protocol, timeout and
// session, or a reply's number.
func (w *wire) frame(b []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.greeted {
		w.greeted = true
		if len(w.sent) > 0 {
			w.s.greeted(w.sent[0].at,
				time.Duration(binary.BigEndian.Uint32(b[4:]))*time.Millisecond,
				int64(binary.BigEndian.Uint64(b[8:])))
		}
		w.sent = w.sent[:0]
		return
	}
	xid := int32(binary.BigEndian.Uint32(b))
	for i, st := range w.sent {
		if st.xid == xid {
			w.sent = append(w.sent[:i], w.sent[i+1:]...)
			now := backend.Now()
			if i == 0 {
				w.since = now
			}
			if st.op == opSetAuth || st.op == opSetWatches {
				w.s.resumed(st.at, now)
			} else {
				w.s.answered(st.at, now, isWrite(st.op))
			}
			return
		}
	}
}

// SetReadDeadline bounds the wait for the greeting: the client library would wait for several
// times the session. After that it is the watchdog that does not wait: what the library takes for
// two thirds of the session is shorter.
func (w *wire) SetReadDeadline(t time.Time) error {
	w.mu.Lock()
	greeted := w.greeted
	w.mu.Unlock()
	switch {
	case t.IsZero():
	case greeted:
		return nil
	default:
		t = time.Now().Add(w.s.patience(greetMost))
	}
	return w.Conn.SetReadDeadline(t)
}

// SetWriteDeadline does nothing: the watchdog ends a connection on which a request cannot leave.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

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
