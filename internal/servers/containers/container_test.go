package main

import "testing"

func TestWithoutHeaders(t *testing.T) {
	log := "\x01\x00\x00\x00\x00\x00\x00\x04one\n" +
		"\x02\x00\x00\x00\x00\x00\x00\x04two\n" +
		"\x01\x00\x00\x00\x00\x00\x00\x09cut"
	if got, want := string(withoutHeaders([]byte(log))), "one\ntwo\ncut"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
