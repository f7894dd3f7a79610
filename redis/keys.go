package redis

import (
	"strconv"
	"strings"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// keys are the Redis keys of one lock, all in the slot of the lock key itself.
// The lock key is prefix + name, verbatim. Ours have a NUL byte, which no name and no
// prefix has, and a hash tag of that slot:
//
//	fl\0{tag}c          the slot's counter
//	fl\0{tag}r          the slot's ring of released nonces
//	fl\0{tag}q<lock>    the queue
//	fl\0{tag}m<lock>    its waiters
//	fl\0{tag}x<nonce>   a tombstone
//	fl\0{tag}g<prefix>  the gates of the keyspace: on a cluster in every slot, elsewhere in one
//	fl\0{tag}k<prefix>\0<migration>   the migration's clients, in one slot
type keys struct {
	lock string
	ours string // fl\0{tag}
}

func keysOf(lock string) keys {
	return keys{lock, ours(tags()[slot(lock)])}
}

// ours is what the keys of a slot begin with.
func ours(tag string) string { return "fl\x00{" + tag + "}" }

// acquire returns the KEYS of fast.lua.
func (k keys) acquire(nonce, gates string) []string { return k.with(nonce, gates) }

// release returns the KEYS of freed.lua.
func (k keys) release(nonce string) []string { return k.with(nonce, k.ours+"r") }

// inspect returns the KEYS of inspect.lua.
func (k keys) inspect() []string { return k.with("", "")[:3] }

// handOn returns the KEYS of break.lua.
func (k keys) handOn() []string { return k.with("", "")[:5] }

func (k keys) with(nonce, sixth string) []string {
	return []string{k.lock, k.ours + "q" + k.lock, k.ours + "m" + k.lock, k.ours + "c", k.ours + "x" + nonce, sixth}
}

// gatesOf returns the key of the gates that the acquire of a lock reads.
func (d *Driver) gatesOf(k keys) string {
	if d.cluster != nil {
		return k.ours + "g" + d.prefix
	}
	return d.gates
}

// mark returns the owner as the value of a lock has it: with the migration behind a NUL, which no owner
// has, for a holder in PhaseBoth. A claim has one more NUL at its end.
func mark(r *backend.Request) string {
	if r.Phase == backend.PhaseBoth {
		return r.Owner + "\x00" + r.Move
	}
	return r.Owner
}

// value is what the value of a lock key says; the zero value is a stranger's.
type value struct {
	token backend.Token
	owner string
	both  string // the migration of a holder in PhaseBoth
	claim bool   // granted by a release, and not confirmed: nobody trusts it yet
}

// parse reads "nonce:token:owner" with its marks.
func parse(s string) value {
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 || len(parts[0]) != 32 || strings.Trim(parts[0], "0123456789abcdef") != "" {
		return value{}
	}
	token, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return value{}
	}
	rest, claim := strings.CutSuffix(parts[2], "\x00")
	owner, both, _ := strings.Cut(rest, "\x00")
	return value{token, owner, both, claim}
}

// slot returns the hash slot of a key: CRC16 of its hash tag, as the Redis
// Cluster specification defines both.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(key) % slots)
}

// crc16 is CRC-16/XMODEM.
func crc16(s string) uint16 {
	var crc uint16
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}

// tags has, for every slot, the first short text that hashes to it.
var tags = sync.OnceValue(func() *[slots]string {
	var t [slots]string
	for i, left := 0, slots; left > 0; i++ {
		tag := strconv.FormatInt(int64(i), 36)
		if s := crc16(tag) % slots; t[s] == "" {
			t[s] = tag
			left--
		}
	}
	return &t
})
