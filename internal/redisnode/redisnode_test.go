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
