package core

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/fencelock/fencelock/backend"
)

// Nonce returns the nonce of a request: 32 hex digits.
func Nonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	var digits [32]byte
	hex.Encode(digits[:], raw[:])
	return string(digits[:])
}

// Keyspace returns what goes before every lock's name, as the Options of a driver say it.
func Keyspace(prefix string, none bool) (string, error) {
	switch {
	case none && prefix != "":
		return "", backend.Invalid("the Options have both Prefix and NoPrefix: want one")
	case prefix == "" && !none:
		prefix = backend.DefaultPrefix
	}
	return prefix, backend.CheckPrefix(prefix)
}
