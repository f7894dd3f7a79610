package redlock

import (
	"hash/crc32"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// Keys of ours have a NUL byte, which no name and no prefix has; state.lua lists them.
const (
	stateKey = "fl\x00rl"
	waitKey  = "fl\x00rl:w" // + lock
	channel  = "fl\x00rl:p" // + process
)

// buckets is how many counters a node has. One would do; with many, locks that are taken at the same moment by
// different clients seldom share one, so that the votes agree.
const buckets = 4096

func bucket(lock string) string {
	return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(lock)) % buckets))
}

// parse reads "id:number:owner"; zeros for a value that is not ours.
func parse(value string) (id string, number backend.Token, owner string) {
	parts := strings.SplitN(value, ":", 3)
	if len(parts) != 3 || len(parts[0]) < 32 || strings.Trim(parts[0], "0123456789abcdef.") != "" {
		return "", 0, ""
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return "", 0, ""
	}
	return parts[0], n, parts[2]
}
