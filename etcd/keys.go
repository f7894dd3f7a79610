package etcd

import (
	"net/url"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/backend"
)

// keys makes the keys of one keyspace. A ~ of the prefix is doubled, so that no
// prefix can run on into the keys of a shorter one.
type keys struct{ prefix string }

func keysOf(prefix string) keys { return keys{strings.ReplaceAll(prefix, "~", "~~")} }

// locks is what the keys of all locks begin with.
func (k keys) locks() string { return k.prefix + "~lock/" }

// queue is what the keys of one lock begin with: its holder's and its waiters', each with an id.
// The encoded name has no slash, so no queue lies in another.
func (k keys) queue(name string) string { return k.locks() + encode(name) + "/" }

// mark stands before the id in the key of a claim that others may hold the lock beside: +r of a reader,
// +p5. of a permit of five. A key that begins otherwise excludes all others.
func mark(r *backend.Request) string {
	switch r.Mode {
	case backend.Reader:
		return "+r"
	case backend.Permit:
		return "+p" + strconv.Itoa(r.Limit) + "."
	}
	return ""
}

// idOf is the id of an entry that others may be beside, by its key.
func idOf(key string) string { return key[strings.LastIndexAny(key, "r.")+1:] }

// asks returns what an entry asks for. id is its key without the prefix of the queue, text its value.
func asks(id, text string) *backend.Request {
	limit, _, whole := strings.Cut(strings.TrimPrefix(id, "+p"), ".")
	n, err := strconv.Atoi(limit)
	r := &backend.Request{}
	switch _, known := parse(text); {
	case !known: // a stranger's
	case strings.HasPrefix(id, "+r"):
		r.Mode = backend.Reader
	case strings.HasPrefix(id, "+p") && whole && err == nil:
		r.Mode, r.Limit = backend.Permit, n
	}
	return r
}

// kin are the first key of a queue that an entry of the mode of r may have, and the first one after all
// of those.
func kin(queue string, r *backend.Request) (from, end string) {
	from = queue + mark(r)[:2]
	return from, clientv3.GetPrefixRangeEnd(from)
}

// base is the number that is added to a create revision to make a token.
func (k keys) base() string { return k.prefix + "~base" }

// last is written by every release with its nonce, in the step that deletes the entry.
func (k keys) last() string { return k.prefix + "~last" }

// gates is the key of all gates of the keyspace.
func (k keys) gates() string { return k.prefix + "~gates" }

// clients is what the keys of a migration's clients begin with. The id of a client follows,
// encoded.
func (k keys) clients(move string) string { return k.prefix + "~client/" + encode(move) + "/" }

// gone is the tombstone of an acquisition.
func (k keys) gone(nonce string) string { return k.prefix + "~gone/" + nonce }

// token is the key of a guarded resource.
func (k keys) token(resource string) string { return k.prefix + "~token/" + encode(resource) }

// split takes the key of an entry apart; false if it is not one of ours.
func (k keys) split(key string) (name, nonce string, ok bool) {
	rest, ok := strings.CutPrefix(key, k.locks())
	if !ok {
		return "", "", false
	}
	enc, nonce, ok := strings.Cut(rest, "/")
	if !ok {
		return "", "", false
	}
	name, ok = decode(enc)
	return name, nonce, ok && backend.CheckName(name) == nil
}

const hexDigits = "0123456789ABCDEF"

// encode writes a name so that it has no slash and no control character, and stays
// readable. Byte by byte, so that the names with a prefix have a prefix in common.
func encode(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; {
		case c <= ' ', c == '/', c == '%', c == 0x7f:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// decode undoes encode; false for a text that encode does not write.
func decode(enc string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(enc); i++ {
		c := enc[i]
		if c == '%' {
			if i+2 >= len(enc) {
				return "", false
			}
			n, err := strconv.ParseUint(enc[i+1:i+3], 16, 8)
			if err != nil {
				return "", false
			}
			c = byte(n)
			i += 2
		}
		b.WriteByte(c)
	}
	name := b.String()
	return name, encode(name) == enc
}

// value is the value of an entry.
type value struct {
	held  bool          // granted; otherwise it waits
	next  bool          // it waits, and holds the lock as soon as no entry is in front; see heir
	both  bool          // granted to a client in backend.PhaseBoth of the migration move
	token backend.Token // 0 until the holder's first renewal has written it
	// base: the token is its base plus the create revision of its entry.
	base    backend.Token
	counted bool
	// reserve is how many numbers after its token are the entry's too, if its grant has raised the base.
	reserve int
	slot    int // of a permit
	move    string
	owner   string
}

// holding is the value of a request's entry once it is granted.
func holding(r *backend.Request) value {
	v := value{held: true, owner: r.Owner}
	if r.Phase == backend.PhaseBoth {
		v.both, v.move = true, r.Move
	}
	return v
}

func (v value) String() string {
	token := ""
	switch {
	case v.counted:
		token = "@" + strconv.FormatInt(v.base, 10)
	case v.token > 0:
		token = strconv.FormatInt(v.token, 10)
	}
	if v.reserve > 0 {
		token += "+" + strconv.Itoa(v.reserve)
	}
	switch {
	case v.both:
		return "both:" + token + ":" + url.QueryEscape(v.move) + ":" + v.owner
	case v.slot > 0:
		return "held/" + strconv.Itoa(v.slot) + ":" + token + ":" + v.owner
	case v.held:
		return "held:" + token + ":" + v.owner
	case v.next:
		return "next:" + token + ":" + v.owner
	}
	return "wait:" + token + ":" + v.owner
}

// parse reads a value; false for one that is not ours.
func parse(s string) (v value, ok bool) {
	s, v.both = strings.CutPrefix(s, "both:")
	if v.both {
		s = "held:" + s
	}
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 {
		return v, false
	}
	if v.both {
		move, owner, whole := strings.Cut(parts[2], ":")
		plain, err := url.QueryUnescape(move)
		if !whole || err != nil {
			return v, false
		}
		v.move, parts[2] = plain, owner
	}
	number, reserve, reserves := strings.Cut(parts[1], "+")
	if reserves {
		n, err := strconv.Atoi(reserve)
		if err != nil || n <= 0 || strconv.Itoa(n) != reserve {
			return v, false
		}
		v.reserve = n
	}
	if number, v.counted = strings.CutPrefix(number, "@"); v.counted || number != "" {
		n, err := strconv.ParseInt(number, 10, 64)
		switch {
		case err != nil || n < 0 || n == 0 && !v.counted || v.counted && reserves:
			return v, false
		case v.counted:
			v.base = n
		default:
			v.token = n
		}
	}
	state, slot, slotted := strings.Cut(parts[0], "/")
	if slotted {
		var err error
		if v.slot, err = strconv.Atoi(slot); err != nil || v.slot <= 0 || v.both {
			return v, false
		}
	}
	v.held, v.next, v.owner = state == "held", state == "next", parts[2]
	return v, v.held || !slotted && (v.next || state == "wait")
}

// tokenOf is the token of an entry that says it, of which the create revision is given; else 0.
func (v value) tokenOf(rev int64) backend.Token {
	if v.counted {
		return v.base + rev
	}
	return v.token
}
