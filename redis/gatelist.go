package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // what the scripts of Redis have; nobody gains by a collision
	"encoding/hex"
	"errors"

	"github.com/fencelock/fencelock/backend"
)

// gateList is what a place has of gates. Its version is a hash of the list, so that no client can take it for that of
// another one, whatever a server lost or brought back. The zero value stands for no gates.
type gateList struct {
	version string
	gates   []backend.Gate
}

// gateTries is how often gates may change under one request.
const gateTries = 10

var errGates = errors.New("the gates of the keyspace change all the time")

// versionOf returns the version of a list, as gate.lua makes it.
func versionOf(list string) string {
	sum := sha1.Sum([]byte(list)) //nolint:gosec // as above
	return hex.EncodeToString(sum[:8])
}

// knownGates are those that were read last: those of every place, as a rule.
func (d *Driver) knownGates() *gateList {
	if l := d.known.Load(); l != nil {
		return l
	}
	return &gateList{}
}

// learnGates reads the gates in the slot of a lock.
func (d *Driver) learnGates(ctx context.Context, key string) (*gateList, error) {
	reply, err := d.run(ctx, gatesScript, []string{key, key + "\x00"})
	if err != nil {
		return nil, err
	}
	l, err := readGates(key, reply, nil)
	if err != nil {
		return nil, err
	}
	d.known.Store(l)
	return l, nil
}

// readGates reads the reply of gates.lua. seen has what was read before, by the text of the list; it may be nil.
func readGates(key string, reply any, seen map[string]*gateList) (*gateList, error) {
	parts, ok := reply.([]any)
	if !ok || len(parts) != 2 {
		return nil, badGate(key)
	}
	version, _ := parts[0].(string)
	text, _ := parts[1].(string)
	if version == "" {
		return &gateList{}, nil
	}
	l := seen[text]
	if l == nil {
		gates, err := backend.DecodeGates([]byte(text))
		if err != nil {
			return nil, badGate(key)
		}
		l = &gateList{versionOf(text), gates}
		if seen != nil {
			seen[text] = l
		}
	}
	if l.version != version {
		return nil, badGate(key)
	}
	return l, nil
}

func badGate(key string) error {
	return backend.Invalid("the key %q, which keeps the gates of migrations, holds something else, which some other program put there: until that is gone nothing is granted", key)
}
