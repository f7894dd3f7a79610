package zookeeper

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
)

// What begins the name of a node under a lock's node. What follows is the nonce, and for a waiter
// the number that ZooKeeper gave it.
const (
	heldMark = "held-"
	waitMark = "wait-"
	nonceLen = 32
)

// buckets is how many counters there are for the tokens of all names.
const buckets = 256

// places are the paths of one keyspace.
type places struct {
	root    string // chroot and prefix
	locks   string // a node for each name that is held or waited for; its data are the gates
	tokens  string // the counters
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

// lock is the node of a name.
func (p places) lock(name string) string { return p.locks + "/" + encode(name) }

// counter is the node of a bucket's counter.
func (p places) counter(bucket int) string { return fmt.Sprintf("%s/%02x", p.tokens, bucket) }

// bucketOf is the bucket of a name.
func bucketOf(name string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name)) // never fails
	return int(h.Sum32() % buckets)
}

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
	var b strings.Builder
	for i := 0; i < len(element); i++ {
		if element[i] != '%' {
			b.WriteByte(element[i])
			continue
		}
		if i+2 >= len(element) {
			return "", false
		}
		c, err := strconv.ParseUint(element[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), encode(b.String()) == element
}

// line is who stands at a lock, read from the names of the nodes under it.
type line struct {
	held    string   // the holder's node; empty if there is none
	waiters []string // in order
	strange string   // a node that is not ours, if there is one
}

// readLine reads the children of a lock's node.
func readLine(children []string) line {
	var l line
	for _, c := range children {
		switch {
		case isHeld(c):
			l.held = c
		case isWait(c):
			l.waiters = append(l.waiters, c)
		default:
			l.strange = c
		}
	}
	sortWaiters(l.waiters)
	return l
}

// of are the waiters with a nonce.
func (l line) of(nonce string) (ws []string) {
	for _, w := range l.waiters {
		if w[len(waitMark):len(waitMark)+nonceLen] == nonce {
			ws = append(ws, w)
		}
	}
	return ws
}

func isHeld(node string) bool {
	return strings.HasPrefix(node, heldMark) && len(node) == len(heldMark)+nonceLen
}

func isWait(node string) bool {
	if !strings.HasPrefix(node, waitMark) || len(node) < len(waitMark)+nonceLen+2 {
		return false
	}
	_, err := strconv.ParseInt(node[len(waitMark)+nonceLen+1:], 10, 32)
	return err == nil
}

// sequence is the number that ZooKeeper gave a waiter. It counts up to 2^31 and goes on with the
// least negative number.
func sequence(node string) int32 {
	n, _ := strconv.ParseInt(node[len(waitMark)+nonceLen+1:], 10, 32) // isWait has looked
	return int32(n)
}

// sortWaiters puts those who came first first. The numbers are compared by their difference, since
// they start again after 2^32.
func sortWaiters(ws []string) {
	slices.SortFunc(ws, func(a, b string) int { return int(sequence(a) - sequence(b)) })
}
