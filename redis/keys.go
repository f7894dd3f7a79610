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
//	fl\0{tag}r<process>:<minute>  the nonces that a process released in a minute of its own
//	fl\0{tag}q<lock>    the queue
//	fl\0{tag}m<lock>    its waiters
//	fl\0{tag}x<nonce>   a tombstone
//	fl\0{tag}g<prefix>  the version of the keyspace's gates: on a cluster in every slot, elsewhere in one
//	fl\0{tag}g<prefix>\0  the gates, in the same slots
//	fl\0{tag}k<prefix>\0<migration>   the migration's clients, in one slot
type keys struct{ lock, tag string }

func keysOf(lock string) keys { return keys{lock, tags()[slot(lock)]} }

// ours is what the keys of the lock's slot begin with.
func (k keys) ours() string { return ours(k.tag) }

// ours is what the keys of a slot begin with.
func ours(tag string) string { return "fl\x00{" + tag + "}" }

// inspect returns the KEYS of inspect.lua.
func (k keys) inspect() []string {
	return []string{k.lock, k.ours() + "q" + k.lock, k.ours() + "m" + k.lock}
}

// all returns every key that break.lua may use.
func (k keys) all() []string {
	return append(k.inspect(), k.ours()+"c")
}

// gatesOf returns the key of the version of the gates that the acquire of a lock compares.
func (d *Driver) gatesOf(k keys) string { return *d.gatesIn(k.tag) }

// gatesIn is gatesOf for the locks of a slot.
func (d *Driver) gatesIn(tag string) *string {
	if d.cluster == nil {
		return &d.gates
	}
	key := ours(tag) + "g" + d.prefix
	return &key
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
	table := crcTable()
	var crc uint16
	for i := range len(s) {
		crc = crc<<8 ^ table[byte(crc>>8)^s[i]]
	}
	return crc
}

// crcTable has the checksum of every single byte.
var crcTable = sync.OnceValue(func() *[256]uint16 {
	var t [256]uint16
	for i := range t {
		crc := uint16(i) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
		t[i] = crc
	}
	return &t
})

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
