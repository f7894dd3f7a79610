package redis

import (
	"strconv"
	"testing"
)

// The tags are the same for every process: the first number that hashes to a slot.
func TestTagsAreTheFirst(t *testing.T) {
	t.Parallel()
	var want [slots]string
	for i, left := 0, slots; left > 0; i++ {
		tag := strconv.FormatInt(int64(i), 36)
		if s := crc16(0, tag) % slots; want[s] == "" {
			want[s] = tag
			left--
		}
	}
	if got := tags(); *got != want {
		t.Error("the tags are other ones")
	}
}

func TestTagOfPrefixAndName(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "fencelock:", "my/{app}:", "{", "a{b"} {
		for _, name := range []string{"n", "{}", "a{b}c", "}", "é"} {
			if got, want := tagOf(prefix, name), tags()[slot(prefix+name)]; got != want {
				t.Errorf("%q, %q: got %q, want %q", prefix, name, got, want)
			}
		}
	}
}
