package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc64"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// The state file is text, a record a line, words separated by one space; a word that is not
// plain is quoted as in Go:
//
//	fencelock state VERSION bucket INDEX
//	boot ID
//	counter TOKEN
//	gate PREFIX MIGRATION STATE EPOCH PATTERNS
//	client PREFIX UNTIL RECORD
//	name PREFIX NAME FREE-SINCE
//	hold NONCE TOKEN UNTIL SOCKET OWNER      of the name above
//	both MIGRATION                           of the hold above
//	wait NONCE UNTIL SOCKET                  of the name above, in order
//	released NONCE UNTIL
//	abandoned NONCE UNTIL
//	sum CRC-64
//
// Patterns and records are JSON. Times are nanoseconds of the shared clock. The sum is that of all that stands before its line.
const (
	version   = 1
	stateKind = "fencelock state "
)

var table = crc64.MakeTable(crc64.ECMA)

func checksum(raw []byte) uint64 { return crc64.Checksum(raw, table) }

// encode returns the file of a bucket.
func (st *state) encode(bucket int) []byte {
	raw := st.body(bucket)
	return fmt.Appendf(raw, "sum %016x\n", checksum(raw))
}

// body is all but the sum.
func (st *state) body(bucket int) []byte {
	raw := make([]byte, 0, 256+128*(len(st.entries)+len(st.marks)))
	raw = line(raw, "fencelock", "state", num(version), "bucket", num(int64(bucket)))
	raw = line(raw, "boot", st.boot)
	raw = line(raw, "counter", num(st.counter))
	for _, g := range st.gates {
		raw = line(raw, "gate", g.prefix, g.Move, string(g.State), num(g.Epoch), encodeJSON(g.Scope))
	}
	for _, c := range st.clients {
		raw = line(raw, "client", c.prefix, num(c.until), encodeJSON(c.Client))
	}
	for _, e := range st.entries {
		raw = line(raw, "name", e.prefix, e.name, num(e.free))
		if h := e.hold; h != nil {
			raw = line(raw, "hold", h.nonce, num(h.token), num(h.until), h.ear, h.owner)
			if h.both != "" {
				raw = line(raw, "both", h.both)
			}
		}
		for _, w := range e.queue {
			raw = line(raw, "wait", w.nonce, num(w.until), w.ear)
		}
	}
	for _, m := range st.marks {
		kind := "abandoned"
		if m.released {
			kind = "released"
		}
		raw = line(raw, kind, m.nonce, num(m.until))
	}
	return raw
}

func num(n int64) string { return strconv.FormatInt(n, 10) }

func line(raw []byte, words ...string) []byte {
	for i, w := range words {
		if i > 0 {
			raw = append(raw, ' ')
		}
		if plain(w) {
			raw = append(raw, w...)
		} else {
			raw = strconv.AppendQuote(raw, w)
		}
	}
	return append(raw, '\n')
}

// plain reports whether a word needs no quotes.
func plain(w string) bool {
	for i := range len(w) {
		c := w[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && c != '-' && c != '.' && c != ':' && c != '_' && c != '/' {
			return false
		}
	}
	return w != ""
}

// decode reads the file of a bucket.
func decode(raw []byte, bucket int) (*state, error) {
	if len(raw) == 0 {
		return nil, errors.New("it is empty")
	}
	first, _, _ := bytes.Cut(raw, []byte("\n"))
	if !bytes.HasPrefix(raw, []byte(stateKind)) {
		return nil, fmt.Errorf("it begins with %.40q and not with %q", first, stateKind)
	}
	want := strings.TrimSuffix(string(line(nil, "fencelock", "state", num(version), "bucket", num(int64(bucket)))), "\n")
	if string(first) != want {
		return nil, fmt.Errorf("it is of another version or bucket: it begins with %.60q, want %q", first, want)
	}
	i := bytes.LastIndex(raw, []byte("\nsum ")) + 1
	if i == 0 {
		return nil, errors.New("it is cut short: the sum is missing")
	}
	if got, want := string(raw[i:]), fmt.Sprintf("sum %016x\n", checksum(raw[:i])); got != want {
		return nil, fmt.Errorf("it is damaged: it ends with %.40q, want %q", got, want)
	}
	return decodeBody(string(raw[:i]))
}

// decodeBody reads all that the sum covers.
func decodeBody(body string) (*state, error) {
	d := &decoder{st: &state{}}
	n := 0
	for text := range strings.Lines(body) {
		if n++; n == 1 {
			continue // decode has looked at it
		}
		if err := d.line(text); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if n < 3 {
		return nil, errors.New("boot or counter is missing")
	}
	if d.open && d.empty() {
		return nil, errors.New("the last name is neither held nor waited for")
	}
	return d.st, nil
}

type decoder struct {
	st   *state
	rest string // of the line
	err  error  // the first of the line
	open bool   // there is a name above
	seen int    // lines
}

// line reads one record.
func (d *decoder) line(text string) error {
	var ok bool
	if d.rest, ok = strings.CutSuffix(text, "\n"); !ok {
		return errors.New("it has no end")
	}
	d.seen++
	switch kind := d.word(); {
	case d.seen == 1 && kind == "boot":
		d.st.boot = d.word()
	case d.seen == 2 && kind == "counter":
		d.st.counter = d.token()
	case d.seen <= 2:
		return errors.New("want boot and counter here")
	case kind == "gate" && len(d.st.clients) == 0 && len(d.st.entries) == 0 && len(d.st.marks) == 0:
		d.gate()
	case kind == "client" && len(d.st.entries) == 0 && len(d.st.marks) == 0:
		d.client()
	case kind == "name":
		d.name()
	case kind == "hold" && d.open && d.empty():
		h := &hold{nonce: d.id(), token: d.token(), until: d.num(), ear: d.ear(), owner: d.word()}
		d.fail(backend.CheckOwner(h.owner))
		d.last().hold = h
	case kind == "both" && d.open && !d.empty() && d.last().hold != nil && d.last().hold.both == "" && len(d.last().queue) == 0:
		d.last().hold.both = d.word()
		d.fail(backend.CheckName(d.last().hold.both))
	case kind == "wait" && d.open:
		e := d.last()
		e.queue = append(e.queue, waiter{nonce: d.id(), until: d.num(), ear: d.ear()})
	case kind == "released" || kind == "abandoned":
		if d.open && d.empty() {
			return errors.New("the name above is neither held nor waited for")
		}
		d.open = false
		d.st.marks = append(d.st.marks, mark{nonce: d.id(), released: kind == "released", until: d.num()})
	default:
		return fmt.Errorf("%.40q is unknown or out of place", kind)
	}
	if d.err == nil && d.rest != "" {
		return fmt.Errorf("%.40q is too much", d.rest)
	}
	return d.err
}

func (d *decoder) name() {
	e := &entry{prefix: d.word(), name: d.word(), free: d.num()}
	d.fail(backend.CheckPrefix(e.prefix))
	d.fail(backend.CheckName(e.name))
	switch {
	case d.open && d.empty():
		d.fail(errors.New("the name above is neither held nor waited for"))
	case !d.open && len(d.st.marks) > 0:
		d.fail(errors.New("a name after the marks"))
	case d.open && d.last().compare(e) >= 0:
		d.fail(errors.New("the names are not in order"))
	}
	d.st.entries = append(d.st.entries, e)
	d.open = true
}

func (d *decoder) last() *entry { return d.st.entries[len(d.st.entries)-1] }

// empty reports whether the last name has no record yet.
func (d *decoder) empty() bool { return d.last().hold == nil && len(d.last().queue) == 0 }

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
}

// word takes the next word of the line.
func (d *decoder) word() string {
	var w string
	if strings.HasPrefix(d.rest, `"`) {
		quoted, err := strconv.QuotedPrefix(d.rest)
		if err == nil {
			w, err = strconv.Unquote(quoted)
		}
		d.fail(err)
		d.rest = d.rest[len(quoted):]
	} else {
		end := strings.IndexByte(d.rest, ' ')
		if end < 0 {
			end = len(d.rest)
		}
		w, d.rest = d.rest[:end], d.rest[end:]
		if !plain(w) {
			d.fail(fmt.Errorf("%.40q is no word", w))
		}
	}
	switch {
	case d.rest == "":
	case d.rest[0] == ' ' && len(d.rest) > 1:
		d.rest = d.rest[1:]
	default:
		d.fail(fmt.Errorf("%.40q stands where one space should", d.rest))
	}
	return w
}

func (d *decoder) num() int64 {
	w := d.word()
	n, err := strconv.ParseInt(w, 10, 64)
	if err != nil {
		d.fail(fmt.Errorf("%.40q is no number", w))
	}
	return n
}

func (d *decoder) token() backend.Token {
	n := d.num()
	if n < 0 || n > maxToken {
		d.fail(fmt.Errorf("token %d is not below 2^53", n))
	}
	return n
}

// id takes a nonce.
func (d *decoder) id() string {
	w := d.word()
	if w == "" {
		d.fail(errors.New("a nonce is empty"))
	}
	return w
}

// ear takes the name of a socket file, which must be one of ours: it is opened
// and removed by that name.
func (d *decoder) ear() string {
	w := d.word()
	if w != "" && !isEar(w) {
		d.fail(fmt.Errorf("%.60q is no socket of ours", w))
	}
	return w
}
