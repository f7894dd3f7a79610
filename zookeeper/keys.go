package zookeeper

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// places are the paths of one keyspace.
type places struct {
	root    string // chroot and prefix
	locks   string // a node for each name that is held or waited for; its data are the gates
	tokens  string // the base of the tokens
	done    string // what sessions released last
	clients string // what clients have reported; made when the first one does
}

func newPlaces(chroot, prefix string) places {
	root := chroot + "/" + encode(prefix)
	return places{
		root: root, locks: root + "/locks", tokens: root + "/tokens", done: root + "/done",
		clients: root + "/clients",
	}
}

// checkPrefix returns nil for a prefix that a keyspace may have.
func checkPrefix(prefix string) error {
	switch prefix {
	case "locks", "tokens", "done", "clients", "zookeeper":
		return backend.Invalid("the prefix %q: want another than locks, tokens, done and clients, which are nodes "+
			"of the driver's own if the chroot is a keyspace too, and zookeeper, which is ZooKeeper's", prefix)
	}
	return nil
}

// lock is the node of a name.
func (p places) lock(name string) string { return p.locks + "/" + encode(name) }

// client is the node of a client's report. No text is encoded with the two characters in the
// middle.
func (p places) client(move, id string) string {
	return p.clients + "/" + encode(move) + clientCut + encode(id)
}

const clientCut = "%."

// encode makes one element of a path of any text, so that two texts never meet: bytes that are
// not in plain, and a dot in the first place, become %XX. No text is a single %.
func encode(text string) string {
	if text == "" {
		return "%"
	}
	var b strings.Builder
	for i := range len(text) {
		if c := text[i]; plain(c) && (c != '.' || i > 0) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		strings.IndexByte("-_.:=+@,~", c) >= 0
}

// decode is the way back; false for what encode does not make.
func decode(element string) (string, bool) {
	if element == "%" {
		return "", true
	}
	text, err := url.PathUnescape(element)
	return text, err == nil && encode(text) == element
}
