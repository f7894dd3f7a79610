package redis

import (
	"strconv"
	"strings"
	"sync"
)

// nonceLen is how long a nonce is.
const nonceLen = 32

// slots is how many hash slots a Redis Cluster has.
const slots = 16384

// keys are the Redis keys of one lock, all in the slot of the lock key itself.
// The lock key is prefix + name, verbatim. Ours have a NUL byte, which no name and no
// prefix has, and a hash tag of that slot: the package comment lists them.
type keys struct{ lock, tag string }

func keysOf(lock string) keys { return keys{lock, tagOf("", lock)} }

// tagOf returns the hash tag of the keys of the lock whose key is prefix + name.
func tagOf(prefix, name string) string {
	if strings.Contains(prefix, "{") || strings.Contains(name, "{") {
		return tags()[slot(prefix+name)]
	}
	return tags()[crc16(crc16(0, prefix), name)%slots]
}

// ours is what the keys of the lock's slot begin with.
func (k keys) ours() string { return ours(k.tag) }

// ours is what the keys of a slot begin with.
func ours(tag string) string { return "fl\x00{" + tag + "}" }

// holds is the key of a group's holds, and parts the key with the rest about them: holds.lua.
func (k keys) holds() string { return k.ours() + "h" + k.lock }
func (k keys) parts() string { return k.ours() + "o" + k.lock }

// inspect returns the KEYS of inspect.lua.
func (k keys) inspect() []string {
	return []string{k.lock, k.ours() + "q" + k.lock, k.ours() + "m" + k.lock, k.holds(), k.parts()}
}

// all returns every key that break.lua may use.
func (k keys) all(gates string) []string {
	return []string{
		k.lock, gates, k.ours() + "q" + k.lock, k.ours() + "m" + k.lock, k.ours() + "c", k.holds(), k.parts(),
	}
}

// slot returns the hash slot of a key: CRC16 of its hash tag, as the Redis
// Cluster specification defines both.
func slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	return int(crc16(0, key) % slots)
}

// crc16 is CRC-16/XMODEM, which goes on from the crc of the text before s.
func crc16(crc uint16, s string) uint16 {
	table := crcTable()
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

// tags has, for every slot, the first short text that hashes to it: a number in base 36. The first
// lock of a program needs them, so they are made cheaply: they are parts of one text, and a number's
// checksum goes on from the checksum of its digits before the last.
var tags = sync.OnceValue(func() *[slots]string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	table := crcTable()
	var from [slots]int // where in all, plus one
	all := make([]byte, 0, 5*slots)
	sums := []uint16{0} // of the numbers, in order; the first is of none
	for i, left := 0, slots; left > 0; i++ {
		// The number i is the number i/36, if that is not 0, and a digit.
		before, digit := uint16(0), digits[i%36]
		if i >= 36 {
			before = sums[i/36+1]
		}
		sum := before<<8 ^ table[byte(before>>8)^digit]
		sums = append(sums, sum)
		if s := sum % slots; from[s] == 0 {
			from[s] = len(all) + 1
			all = strconv.AppendInt(all, int64(i), 36)
			all = append(all, ' ')
			left--
		}
	}
	var t [slots]string
	text := string(all)
	for s, at := range from {
		t[s], _, _ = strings.Cut(text[at-1:], " ")
	}
	return &t
})
