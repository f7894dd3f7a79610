package zookeeper

import (
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"
)

// frame is a length and words of 4 bytes.
func frame(words ...int32) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(4*len(words)))
	for _, w := range words {
		b = binary.BigEndian.AppendUint32(b, uint32(w))
	}
	return b
}

// The wire reads the same whatever pieces the network makes of the frames.
func TestWireReadsFramesInPieces(t *testing.T) {
	stream := append(frame(0, 9000, 0, 77, 16, 1, 2, 3, 4), frame(1, 0, 5, 0)...)
	stream = append(stream, frame(-1, 0, 0, 0, 3, 3, 3, 3)...) // a watch's event
	stream = append(stream, frame(-2, 0, 0, 0)...)
	for size := 1; size <= len(stream); size++ {
		server, client := net.Pipe()
		s := &session{d: &Driver{servers: []string{"x"}}}
		w := &wire{Conn: client, s: s}
		go func() { _, _ = io.Copy(io.Discard, server) }()
		for _, f := range [][]byte{frame(0, 0, 0, 9000, 0, 0), frame(1, 14), frame(-2, 11)} {
			if _, err := w.Write(f); err != nil {
				t.Fatal(err)
			}
		}
		for rest := stream; len(rest) > 0; {
			n := min(size, len(rest))
			w.feed(rest[:n])
			rest = rest[n:]
		}
		if s.granted != 9*time.Second || s.id != 77 {
			t.Fatalf("pieces of %d: greeted with %v and session %d", size, s.granted, s.id)
		}
		// What was written before the greeting is forgotten with it.
		if len(w.sent) != 0 {
			t.Fatalf("pieces of %d: %d requests are open, want none", size, len(w.sent))
		}
		_, _ = w.Close(), server.Close()
	}
}

// A request that is answered moves the end of the session; a ping of one that nobody uses is not sent.
func TestWireKnowsWhatIsAnswered(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	s := &session{d: &Driver{servers: []string{"x"}}}
	w := &wire{Conn: client, s: s}
	defer w.Close()
	arrived := make(chan int, 10)
	go func() {
		buf := make([]byte, 100)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			arrived <- n
		}
	}()
	send := func(f []byte) {
		if _, err := w.Write(f); err != nil {
			t.Fatal(err)
		}
	}
	send(frame(0, 0, 0, 9000, 0, 0))
	w.feed(frame(0, 9000, 0, 77, 16, 1, 2, 3, 4))
	first := s.reach.until
	send(frame(1, 14))
	send(frame(2, 14))
	w.feed(frame(2, 0, 0, 0))
	if s.reach.until.Sub(first) <= 0 || len(w.sent) != 1 || w.sent[0].xid != 1 {
		t.Errorf("after the second answer: until moved by %v, open are %+v", s.reach.until.Sub(first), w.sent)
	}
	for range 3 {
		<-arrived
	}
	s.idle.Store(true)
	send(frame(-2, 11))
	s.idle.Store(false)
	send(frame(-2, 11))
	if n := <-arrived; n != 12 || len(w.sent) != 2 {
		t.Errorf("pings: got one of %d bytes and %d open requests, want one ping", n, len(w.sent))
	}
	select {
	case n := <-arrived:
		t.Errorf("the ping of an unused session was sent (%d bytes)", n)
	default:
	}
}

// What a client has seen is taken out of its request for a session, and nothing else.
func TestWithoutHistory(t *testing.T) {
	got := withoutHistory(frame(0, 5, 6, 9000, 0, 1))
	if want := frame(0, 0, 0, 9000, 0, 1); string(got) != string(want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
