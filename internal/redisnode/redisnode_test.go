package redisnode

import (
	"errors"
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
