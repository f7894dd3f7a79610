package zookeeper

import (
	"io"
	"net"
	"testing"
	"time"
)

// What the client library sends by itself on every new connection says nothing of whether requests are answered: a
// server that answers it and nothing else is silent, and is given more and more time.
func TestResumedIsNoAnswer(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	go func() { _, _ = io.Copy(io.Discard, server) }()
	s := aSession()
	s.granted = 9 * time.Second
	w := &wire{Conn: client, s: s, written: true, greeted: true}
	defer w.Close()
	s.silence()
	asks := func(xid, op int32) {
		t.Helper()
		if _, err := w.Write(frame(xid, op)); err != nil {
			t.Fatal(err)
		}
		w.frame(frame(xid, 0, 0, 0)[4:])
	}
	asks(-4, opSetAuth)
	asks(-8, opSetWatches)
	if got, want := s.patience(silentMost), 6*time.Second; got != want || !s.heard.IsZero() {
		t.Errorf("after a new connection: the patience is %v, want %v; heard of at %v, want never", got, want, s.heard)
	}
	if len(s.reach.open) != 1 {
		t.Errorf("%d answers are open: want one, for the server has heard of the session", len(s.reach.open))
	}
	asks(1, 14)
	if got := s.patience(silentMost); got != silentMost || s.heard.IsZero() {
		t.Errorf("after an answer: the patience is %v, want %v; heard of at %v", got, silentMost, s.heard)
	}
}

// A connection breaks when the credentials were taken, and before the client library knows that the next one needs them
// too: they are sent there.
func TestCredentialsOfTheNextConnection(t *testing.T) {
	s := aSession()
	s.wire = &wire{}
	sent := 0
	if err := s.authenticate(func() error {
		if sent++; sent == 1 {
			s.wire = &wire{}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if sent != 2 || !s.authDone {
		t.Errorf("they were sent %d times, want twice; all is done: %v", sent, s.authDone)
	}
}
