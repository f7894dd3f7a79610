package record

import (
	"encoding/hex"
	"strings"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// known keeps the records that this process wrote last and that nobody else is likely to have changed:
// those of locks that it holds, and of free locks for which nobody waits. It saves a read. Where it is
// wrong the store refuses the write.
type known struct {
	mu       sync.Mutex
	versions map[string]version
}

// mostKnown bounds the memory; past it everything is forgotten.
const mostKnown = 4096

func (k *known) get(name string) (version, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	v, ok := k.versions[name]
	v.record = v.clone()
	return v, ok
}

func (k *known) forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.versions, name)
}

// put keeps v, which was written no earlier than now. That stands for the beginning of its holder's
// lease, which may be later: so the holder is safe, and nobody else is to go by it.
func (k *known) put(name string, v version, now int64) {
	if len(v.Queue) > 0 || v.Holder != nil && v.Holder.Since != 0 {
		return
	}
	v.record = v.clone()
	if v.Holder != nil {
		v.Holder.Since = now
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.versions == nil || len(k.versions) >= mostKnown {
		k.versions = map[string]version{}
	}
	k.versions[name] = v
}

// encode keeps every name apart from every other, whatever is in it.
func encode(name string) string { return hex.EncodeToString([]byte(name)) }

// decodeName is false for a key that is no lock's.
func decodeName(encoded string) (string, bool) {
	digits, ok := strings.CutPrefix(encoded, "n")
	name, err := hex.DecodeString(digits)
	return string(name), ok && err == nil && backend.CheckName(string(name)) == nil
}
