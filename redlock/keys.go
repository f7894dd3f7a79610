package redlock

import (
	"hash/crc32"
	"strconv"
)

// Keys of ours have a NUL byte, which no name and no prefix has; state.lua lists them.
const (
	stateKey = "fl\x00rl"
	waitKey  = "fl\x00rl:w" // + lock
	channel  = "fl\x00rl:p" // + process
	gatesKey = "fl\x00rl:g" // + prefix
)

// buckets is how many counters a node has. One would do; with many, locks that are taken at the same
// moment by different clients seldom share one, so that the votes agree.
const buckets = 4096

func bucket(lock string) string {
	return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(lock)) % buckets))
}
