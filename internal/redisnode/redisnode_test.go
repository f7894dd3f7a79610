package redisnode

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

func TestTooOld(t *testing.T) {
	for info, says := range map[string]string{
		"# Server\r\nredis_version:5.0.14\r\nredis_mode:standalone\r\n": "Redis 5.0.14: 6 or later",
		"# Server\r\nredis_version:6.0.16\r\n":                          "",
		"# Server\r\nredis_version:10.1.0\r\n":                          "",
		"# Server\r\nserver_name:valkey\r\nredis_version:7.2.4\r\n":     "",
		"redis_version:unstable\r\n":                                    "",
		"# Server\r\n":                                                  "",
		"":                                                              "",
	} {
		err := TooOld(info)
		if (err != nil) != (says != "") {
			t.Errorf("%q: got %v, want %q", info, err, says)
		}
		if err != nil && (!errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), says)) {
			t.Errorf("%q: got %v, want ErrInvalid that says %q", info, err, says)
		}
	}
}

// said is an answer of a server.
type said string

func (s said) Error() string { return string(s) }
func (said) RedisError()     {}

// The name of a lock beside an error is no answer of a server.
func TestMeaningBesideAName(t *testing.T) {
	for _, tt := range []struct {
		err   error
		final bool
	}{
		{said("NOAUTH Authentication required."), true},
		{said("ERR user_script:1: WRONGTYPE Operation against a key script: 0"), true},
		{fmt.Errorf("%q: %w", "a", said("NOPERM this user has no permissions")), true},
		{fmt.Errorf("%q: %w", "a NOAUTH b", said("LOADING Redis is loading the dataset in memory")), false},
		{fmt.Errorf("%q: %w", "a NOAUTH b", io.EOF), false},
	} {
		if err := Meaning(tt.err); errors.Is(err, backend.ErrInvalid) != tt.final || !errors.Is(err, tt.err) {
			t.Errorf("%v: got %v, want ErrInvalid: %v", tt.err, err, tt.final)
		}
	}
}

// What a server says of a channel that was left may come once it was joined again, and takes nothing back then.
func TestChannelIsTakenBack(t *testing.T) {
	moved := 0
	h := &Hub{
		hubs:     &Hubs{Moved: func() { moved++ }},
		channels: map[string]*subscription{"c": {ready: make(chan struct{})}},
	}
	for _, step := range []struct {
		kind         string
		there, ready bool
		moved        int
	}{
		{"sunsubscribe", true, false, 0},
		{"ssubscribe", true, true, 0},
		{"ssubscribe", true, true, 0},
		{"sunsubscribe", false, false, 1},
		{"sunsubscribe", false, false, 1},
	} {
		h.take(Event{Kind: step.kind, Channel: "c"})
		s, there := h.channels["c"]
		if there != step.there || there && s.isReady() != step.ready || moved != step.moved {
			t.Fatalf("after %s: there %v, moved %d, want %+v", step.kind, there, moved, step)
		}
	}
}
