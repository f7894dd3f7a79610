package zookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/backend"
)

// frame is a length and words of 4 bytes.
func frame(words ...int32) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4*len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, uint32(w))
	}
	return b
}

// The wire reads the same whatever pieces the network makes of the frames, and tells of a shorter
// session than was granted.
func TestWireReadsFramesInPieces(t *testing.T) {
	stream := append(frame(0, 9000, 0, 77, 16, 1, 2, 3, 4), frame(1, 0, 5, 0)...)
	stream = append(stream, frame(-1, 0, 0, 0, 3, 3, 3, 3)...) // a watch's event
	stream = append(stream, frame(-2, 0, 0, 0)...)
	for size := 1; size <= len(stream); size++ {
		server, client := net.Pipe()
		s := aSession()
		w := &wire{Conn: client, s: s, in: bufio.NewReader(client)}
		go func() { _, _ = io.Copy(io.Discard, server) }()
		go func() {
			for rest := stream; len(rest) > 0; {
				n := min(size, len(rest))
				_, _ = server.Write(rest[:n])
				rest = rest[n:]
			}
		}()
		if _, err := w.Write(frame(0, 0, 0, 9000, 0, 0)); err != nil {
			t.Fatal(err)
		}
		read := make([]byte, len(stream))
		if _, err := io.ReadFull(w, read[:40]); err != nil {
			t.Fatal(err)
		}
		for _, f := range [][]byte{frame(1, 14), frame(-2, 11)} {
			if _, err := w.Write(f); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := io.ReadFull(w, read[40:]); err != nil {
			t.Fatal(err)
		}
		if s.granted != 9*time.Second || s.id != 77 {
			t.Fatalf("pieces of %d: greeted with %v and session %d", size, s.granted, s.id)
		}
		if len(w.sent) != 0 {
			t.Fatalf("pieces of %d: %d requests are open, want none", size, len(w.sent))
		}
		want := slices.Clone(stream)
		binary.BigEndian.PutUint32(want[8:], 3000) // pings every second keep holds of 6 s
		if !slices.Equal(read, want) {
			t.Fatalf("pieces of %d: got\n%v, want\n%v", size, read, want)
		}
		_, _ = w.Close(), server.Close()
	}
}

// The client library takes a frame for an answer whatever its length: less than an answer begins with ends the program
// in a panic, and room is made for whatever a length says.
func TestWireRefusesStrangeFrames(t *testing.T) {
	for _, size := range []uint32{0, 4, frameLeast - 1, frameMost + 1, 1 << 31, 1<<32 - 1} {
		server, client := net.Pipe()
		w := &wire{Conn: client, s: aSession(), in: bufio.NewReader(client), written: true, greeted: true}
		go func() { _, _ = server.Write(binary.BigEndian.AppendUint32(nil, size)); _ = server.Close() }()
		if n, err := w.Read(make([]byte, 4)); n > 0 || err == nil || !strings.Contains(err.Error(), fmt.Sprint(size)) {
			t.Errorf("a frame of %d bytes: got %d of them and %v, want an error that says so", size, n, err)
		}
		_ = w.Close()
	}
}

// The client library makes room for as many names, or bytes of data, as an answer counts: no more than its frame can
// hold.
func TestWireRefusesStrangeCounts(t *testing.T) {
	const opExists, many = 3, 1<<31 - 1
	for _, tt := range []struct {
		op, count int32
		fits      bool
	}{
		{opGetChildren, 2, true},
		{opGetChildren, 3, false},
		{opGetChildren, many, false},
		{opGetChildren, -1, false},
		{opGetData, 8, true},
		{opGetData, 9, false},
		{opGetData, many, false},
		{opGetData, -1, true}, // no data
		{opExists, many, true},
	} {
		server, client := net.Pipe()
		w := &wire{
			Conn: client, s: aSession(), in: bufio.NewReader(client), written: true, greeted: true,
			sent: []stamp{{xid: 7, op: tt.op}},
		}
		answer := frame(7, 0, 5, 0, tt.count, 0, 0)
		go func() { _, _ = server.Write(answer); _ = server.Close() }()
		if n, err := io.ReadFull(w, make([]byte, len(answer))); (err == nil) != tt.fits || err != nil && n > 0 {
			t.Errorf("operation %d, and a count of %d: got %d bytes and %v, want all: %v",
				tt.op, tt.count, n, err, tt.fits)
		}
		_ = w.Close()
	}
}

// An answer that is long on its way is one, though another is due behind it. A server that stops in the middle of an
// answer has given none.
func TestWireWaitsForTheWholeAnswer(t *testing.T) {
	answer := frame(1, 0, 5, 0, 6, 7, 8, 9)
	for _, tt := range []struct {
		name     string
		requests [][]byte
		comes    []byte // of the answer
		whole    bool
	}{
		{"whole", [][]byte{frame(1, 14), frame(-2, 11)}, answer, true},
		{"stops", [][]byte{frame(1, 14)}, answer[:24], false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				took, err := readSlowly(t, len(answer), tt.requests, tt.comes)
				if (err == nil) != tt.whole || took > 4*silentMost {
					t.Errorf("got %v after %v, want an answer: %v", err, took, tt.whole)
				}
			})
		})
	}
}

// readSlowly reads an answer from a server that is slow to write what comes of it after the first words.
func readSlowly(t *testing.T, size int, requests [][]byte, comes []byte) (took time.Duration, err error) {
	t.Helper()
	server, client := net.Pipe()
	w := &wire{Conn: client, s: aSession(), in: bufio.NewReader(client), written: true, greeted: true}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer server.Close()
	defer w.Close()
	defer w.s.stall.Stop()
	wg.Go(func() { _, _ = io.Copy(io.Discard, server) })
	for _, r := range requests {
		if _, err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	wg.Go(func() {
		for n := 20; len(comes) > 0; n = 4 {
			_, _ = server.Write(comes[:n])
			comes = comes[n:]
			time.Sleep(silentMost * 2 / 3)
		}
	})
	began := time.Now()
	_, err = io.ReadFull(w, make([]byte, size))
	return time.Since(began), err
}

// What the servers watch is set again on a new connection before the client library has an answer.
func TestWireSetsWatchesFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, client := net.Pipe()
		defer server.Close()
		w := &wire{Conn: client, s: aSession(), in: bufio.NewReader(client), watches: make(chan bool, 1)}
		defer w.s.stall.Stop()
		defer w.Close()
		go func() { _, _ = io.Copy(io.Discard, server) }()
		stream := append(frame(0, 9000, 0, 77, 16, 1, 2, 3, 4), frame(1, 0, 5, 0)...)
		go func() { _, _ = server.Write(stream) }()
		var set atomic.Bool
		go func() {
			_, _ = w.Write(frame(0, 0, 0, 9000, 0, 0))
			time.Sleep(watchMost / 2)
			set.Store(true)
			_, _ = w.Write(frame(-8, opSetWatches))
		}()
		read := make([]byte, len(stream))
		if _, err := io.ReadFull(w, read[:40]); err != nil || set.Load() {
			t.Fatalf("the greeting: %v, with the watches set: %v; want none", err, set.Load())
		}
		if _, err := io.ReadFull(w, read[40:]); err != nil || !set.Load() {
			t.Errorf("the first answer: %v, with the watches set: %v; want them to be", err, set.Load())
		}
	})
}

// aSession is for holds of 6 s, on servers with a tick of 200 ms.
func aSession() *session {
	st := &store{servers: []string{"x"}}
	st.ticks.Store(int64(200 * time.Millisecond))
	return &session{
		st: st, length: 6 * time.Second, stall: time.AfterFunc(time.Hour, func() {}),
	}
}

// A request that is answered is known to be so.
func TestWireKnowsWhatIsAnswered(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	s := aSession()
	w := &wire{Conn: client, s: s}
	defer w.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	for _, f := range [][]byte{frame(0, 0, 0, 9000, 0, 0), frame(1, 14), frame(2, 14)} {
		if _, err := w.Write(f); err != nil {
			t.Fatal(err)
		}
		if len(w.sent) == 1 {
			w.frame(frame(0, 9000, 0, 77, 16, 1, 2, 3, 4)[4:])
		}
	}
	w.frame(frame(2, 0, 0, 0)[4:])
	if len(s.reach.open) != 1 || len(w.sent) != 1 || w.sent[0].xid != 1 {
		t.Errorf("after the second answer: %+v are answered, %+v are open", s.reach.open, w.sent)
	}
}

// A connection is given up when no answer has come for long, not when a request is old that waited
// behind others.
func TestWireOutlastsAQueue(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	w := &wire{Conn: client, s: aSession(), greeted: true}
	defer w.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	long := backend.Now().Add(-time.Minute)
	w.sent, w.since = []stamp{{xid: 1, at: long}, {xid: 2, at: long}}, long
	w.frame(frame(1, 0, 0, 0)[4:])
	w.watch()
	if _, err := client.Write([]byte{0}); err != nil {
		t.Fatalf("just after an answer: %v, want a connection", err)
	}
	w.watchdog.Stop()
	w.since = long
	w.watch()
	if _, err := client.Write([]byte{0}); err == nil {
		t.Error("a minute without an answer: there is a connection, want none")
	}
}

// In a request for a session the length is ours; what the client has seen is taken out where the
// servers have lost it, and nothing else.
func TestAsking(t *testing.T) {
	s := aSession()
	whole := sessionFor(s.length, s.st.tick()).Milliseconds()
	if got, want := s.asking(frame(0, 5, 6, 9000, 0, 1)), frame(0, 5, 6, int32(whole), 0, 1); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range behindMost - 1 { // a majority may break up
		s.refused(true)
	}
	s.refused(false)
	if got, want := s.asking(frame(0, 5, 6, 9000, 0, 1)), frame(0, 5, 6, int32(whole), 0, 1); !slices.Equal(got, want) {
		t.Errorf("after elections: got %v, want %v", got, want)
	}
	s.refused(true)
	if got, want := s.asking(frame(0, 5, 6, 9000, 0, 1)), frame(0, 0, 0, int32(whole), 0, 1); !slices.Equal(got, want) {
		t.Errorf("after a loss: got %v, want %v", got, want)
	}
}

// Who gives up connection after connection waits longer each time, as long as ZooKeeper's own
// clients at last; an answer ends that.
func TestPatienceGrows(t *testing.T) {
	s := aSession()
	s.granted = 9 * time.Second
	for _, want := range []time.Duration{3 * time.Second, 6 * time.Second, 6 * time.Second} {
		if got := s.patience(silentMost); got != want {
			t.Errorf("after %d silences: got %v, want %v", s.reach.silences, got, want)
		}
		s.silence()
	}
	s.answered(backend.Now(), backend.Now(), false)
	if got := s.patience(silentMost); got != silentMost {
		t.Errorf("after an answer: got %v, want %v", got, silentMost)
	}
	s.length = time.Second
	if got, want := s.patience(silentMost), s.length*2/3; got != want {
		t.Errorf("for short leases: got %v, want %v", got, want)
	}
}

// A session that is over connects to nobody: the library would open another in its place, and send
// there what it still has.
func TestEndedSessionDialsNobody(t *testing.T) {
	s := aSession()
	s.over = make(chan struct{})
	s.ctx = t.Context()
	s.st.ticks.Store(int64(time.Second))
	dialed := 0
	s.st.dial = func(context.Context, string, string) (net.Conn, error) {
		dialed++
		return nil, errors.New("nobody is there")
	}
	h := &hosts{s: s}
	if err := h.Init(s.st.servers); err != nil {
		t.Fatal(err)
	}
	if _, closed := h.Next(); closed {
		t.Error("a session that lives is taken for a closed one")
	}
	_, _ = s.dial("tcp", "x:1", 0)
	s.ended = true
	if _, closed := h.Next(); !closed {
		t.Error("a session that is over is taken for one that lives")
	}
	if _, err := s.dial("tcp", "x:1", 0); !errors.Is(err, errEnded) || dialed != 1 {
		t.Errorf("a session that is over: got %v and %d connections, want %v and 1", err, dialed, errEnded)
	}
}

// A dial that succeeds after its session was given up makes no connection: the session may be left to the servers,
// which keep it for a grace, and the library would close it there.
func TestGivenUpSessionHasNoConnection(t *testing.T) {
	s := aSession()
	defer s.stall.Stop()
	ctx, cancel := context.WithCancel(t.Context())
	s.ctx, s.cancel = ctx, cancel
	s.st.ticks.Store(int64(time.Second))
	server, client := net.Pipe()
	s.st.dial = func(context.Context, string, string) (net.Conn, error) {
		s.abort()
		return client, nil
	}
	if _, err := s.dial("tcp", "x:1", 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	_ = server.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := server.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection: got %v, want that it is closed", err)
	}
}

// Servers that greet and hang up are tried more and more seldom, like those that do not greet.
func TestGreetedAndHungUp(t *testing.T) {
	const dials, least = 6, time.Second
	began, dialed, sixth := time.Now(), 0, make(chan time.Duration, 1)
	st, _ := aClient(t, "127.0.0.1:1", Options{Dial: func(context.Context, string, string) (net.Conn, error) {
		if dialed++; dialed == dials {
			sixth <- time.Since(began)
		}
		server, client := net.Pipe()
		go func() {
			defer server.Close()
			if _, err := io.ReadFull(server, make([]byte, 48)); err == nil { // the request for a session
				_, _ = server.Write(frame(0, 40_000, 0, 77, 16, 1, 2, 3, 4))
			}
		}()
		return client, nil
	}})
	st.ticks.Store(int64(time.Second))
	_, _ = st.any(in(t, 20*time.Second)) // it is connected, or was
	if got := <-sixth; got < least {
		t.Errorf("%d connections within %v, want no more than that in %v", dials, got, least)
	}
}
