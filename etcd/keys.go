package etcd

import (
	"net/url"
	"strconv"
	"strings"

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

// decode undoes encode; false for what encode does not write.
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

// value is what an entry holds.
type value struct {
	held  bool          // granted; otherwise it waits
	both  bool          // granted to a client in backend.PhaseBoth of the migration move
	token backend.Token // 0 until the holder's first renewal has written it
	// reserve is how many numbers after its token are the entry's too, if its grant has raised the
	// base; 0 once the token is written.
	reserve int
	move    string
	owner   string
}

// holding is what the entry of a request holds once it is granted.
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
	case v.token > 0:
		token = strconv.FormatInt(v.token, 10)
	case v.reserve > 0:
		token = "+" + strconv.Itoa(v.reserve)
	}
	switch {
	case v.both:
		return "both:" + token + ":" + url.QueryEscape(v.move) + ":" + v.owner
	case v.held:
		return "held:" + token + ":" + v.owner
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
	if parts[1] != "" {
		n, err := strconv.ParseInt(parts[1], 10, 64)
		if err != nil || n <= 0 {
			return v, false
		}
		if parts[1][0] == '+' {
			v.reserve = int(n)
		} else {
			v.token = n
		}
	}
	v.held, v.owner = parts[0] == "held", parts[2]
	return v, v.held || parts[0] == "wait"
}
