// Package redisnode is what the drivers for Redis servers have in common.
package redisnode

import (
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/release"
)

// An Answer is an error of a server that another try cannot mend, by its first words.
type Answer struct{ Code, Means string }

const (
	rights = "the Redis user lacks rights: it needs the commands of the package documentation, which the scripts call"
	noDB   = "the server has no such database"
)

var answers = []Answer{
	{"NOPERM", "the Redis user lacks rights: it needs the lock keys, the keys and channels that begin " +
		"with fl, and the commands of the package documentation"},
	{"WRONGTYPE", "the key of the lock, prefix and name, or one of ours, which begin with fl, " +
		"holds a value of another type, which some other program put there: use another name or prefix"},
	{"ERR The user executing the script", rights},
	{"NOAUTH", "the server wants a password"},
	{"WRONGPASS", "the server refuses the user or password"},
	{"ERR AUTH", "the server refuses the password"},
	{"ERR invalid DB index", noDB},
	{"ERR DB index is out of range", noDB},
	{"ERR SELECT is not allowed in cluster mode", "the server is a node of a cluster, which has one database"},
	{"ERR Client names cannot", "client_name holds a space or a special character"},
	{"ERR Only HELLO messages are accepted by Sentinel", "the server is a sentinel: use redis+sentinel://"},
	{"ERR unknown command", "the server is too old or the command is disabled: " +
		"Redis " + oldest + " or later is needed, 7.0 for a cluster"},
}

// oldest is the first Redis on which every rule is kept.
const oldest = "6"

// TooOld returns an error that matches ErrInvalid if the answer to INFO is of a server before the oldest.
func TooOld(info string) error {
	_, rest, _ := strings.Cut(info, "redis_version:")
	is, _, _ := strings.Cut(rest, "\r")
	if release.Numbers(is) == nil || !release.Older(is, oldest) {
		return nil
	}
	return backend.Invalid("the server is Redis %s: %s or later is needed, 7.0 for a cluster", is, oldest)
}

// Meaning returns an error of a server as the contract has it: it matches ErrInvalid if it is one
// of those that every driver knows, or of more.
func Meaning(err error, more ...Answer) error {
	if err == nil {
		return nil
	}
	said := "" // by the server: around that may stand the name of a lock
	if e, ok := errors.AsType[replied](err); ok {
		said = e.Error()
	}
	for _, all := range [][]Answer{more, answers} {
		for _, a := range all {
			if strings.HasPrefix(err.Error(), a.Code) || strings.HasPrefix(said, a.Code) ||
				strings.Contains(said, " "+a.Code+" ") {
				return &refused{a.Means, err}
			}
		}
	}
	return err
}

// refused is a server's error that matches ErrInvalid.
type refused struct {
	means string
	err   error
}

func (e *refused) Error() string {
	said, _, _ := strings.Cut(e.err.Error(), " script: ") // what follows is the hash of one of ours
	return fmt.Sprintf("%v: %s (%v)", backend.ErrInvalid, e.means, said)
}
func (e *refused) Unwrap() []error { return []error{backend.ErrInvalid, e.err} }

// Lua is the text of these files, one after the other.
func Lua(files embed.FS, names ...string) (text string) {
	for _, name := range names {
		one, err := files.ReadFile(name + ".lua")
		if err != nil {
			panic(err)
		}
		text += string(one)
	}
	return text
}

// Glob quotes what SCAN's MATCH would read as a pattern.
func Glob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}

// replied is an error that the server answered, as go-redis marks it.
type replied interface {
	error
	RedisError()
}

// Replied reports whether an error is what the server answered.
func Replied(err error) bool {
	_, ok := errors.AsType[replied](err)
	return ok
}

// Forbidden reports whether the server refused a command, before it did anything, for one of the keys that it names:
// the user has no right to that one, and may have it to the others.
func Forbidden(err error) bool {
	e, ok := errors.AsType[replied](err)
	return ok && strings.HasPrefix(e.Error(), "NOPERM") && strings.Contains(e.Error(), " access ") &&
		!strings.Contains(e.Error(), "script")
}
