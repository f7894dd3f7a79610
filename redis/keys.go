package redis

import (
	"strconv"
	"strings"
	"sync"
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
type keys struct {
	lock string
	ours string // fl\0{tag}
}

func keysOf(lock string) keys {
	return keys{lock, "fl\x00{" + tags()[slot(lock)] + "}"}
}

// acquire returns the KEYS of fast.lua.
func (k keys) acquire(nonce string) []string {
	return []string{k.lock, k.ours + "q" + k.lock, k.ours + "m" + k.lock, k.ours + "c", k.ours + "x" + nonce}
}

// release returns the KEYS of freed.lua.
func (k keys) release(nonce string) []string {
	return append(k.acquire(nonce), k.ours+"r")
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
