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
	gatesKey = "fl\x00rl:g" // + prefix
)

// buckets is how many counters a node has. One would do; with many, locks that are taken at the same moment by
// different clients seldom share one, so that the votes agree.
const buckets = 4096

func bucket(lock string) string {
	return strconv.Itoa(int(crc32.ChecksumIEEE([]byte(lock)) % buckets))
}

// mark returns the owner as the value of a lock has it: with the migration behind a NUL, which no owner
// has, for a holder in PhaseBoth.
func mark(r *backend.Request) string {
	if r.Phase == backend.PhaseBoth {
		return r.Owner + "\x00" + r.Move
	}
	return r.Owner
}

// value is what the value of a lock key says; the zero value is a stranger's.
type value struct {
	id     string
	number backend.Token
	owner  string
	both   string // the migration of a holder in PhaseBoth
}

// parse reads "id:number:owner" with its mark.
func parse(s string) value {
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 || len(parts[0]) < 32 || strings.Trim(parts[0], "0123456789abcdef.") != "" {
		return value{}
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil || n < 0 {
		return value{}
	}
	owner, both, _ := strings.Cut(parts[2], "\x00")
	return value{parts[0], n, owner, both}
}
