package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc64"
	"net/url"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// The state file is text, a record a line, words separated by one space and escaped as in a URL's
// path; a word may be empty:
//
//	fencelock state VERSION bucket INDEX
//	boot ID
//	counter TOKEN
//	record PREFIX KEY DATA UNTIL
//	lock PREFIX NAME FREE-SINCE
//	era TOKEN                                  of the lock above, while readers hold it
//	holder NONCE TOKEN UNTIL MIGRATION OWNER   of the lock above
//	waiter NONCE UNTIL SOCKET                  of the lock above, in order
//	released NONCE UNTIL
//	abandoned NONCE UNTIL
//	sum CRC-64
//
// A holder that is not exclusive has MODE LIMIT SLOT at its end, and such a waiter MODE LIMIT CALLED. A program from
// before there were any refuses a file in which they stand.
//
// Times are nanoseconds of the shared clock. The sum is of all that stands before its line. An abandoned nonce of dots,
// until 0, belongs to no claim: it makes the file as large as it is to be.
const (
	formatVersion = 1
	sumSize       = len("sum 0123456789abcdef\n")
	block         = 4096 // of a file system, mostly
)

var table = crc64.MakeTable(crc64.ECMA)

func sumLine(raw []byte) string { return fmt.Sprintf("sum %016x\n", crc64.Checksum(raw, table)) }

// seal ends the file of a state, and makes it so large if it is smaller by a line.
func seal(body []byte, size int) []byte {
	if dots := size - sumSize - len(body) - len("abandoned  0\n"); dots >= 0 {
		body = append(body, "abandoned "...)
		for range dots {
			body = append(body, '.')
		}
		body = append(body, " 0\n"...)
	}
	return append(body, sumLine(body)...)
}

func firstLine(bucket int) string {
	return fmt.Sprintf("fencelock state %d bucket %d\n", formatVersion, bucket)
}

// encode returns the file of a bucket, but for its end.
func (st *state) encode(bucket int) []byte {
	raw := make([]byte, 0, block+192*len(st.locks)+64*(len(st.released)+len(st.abandoned)))
	raw = append(raw, firstLine(bucket)...)
	raw = line(raw, "boot", &st.boot)
	raw = line(raw, "counter", &st.counter)
	for k, r := range st.records {
		raw = line(raw, "record", &k.prefix, &k.name, &r.data, &r.until)
	}
	for k, l := range st.locks {
		raw = line(raw, "lock", &k.prefix, &k.name, &l.freed)
		if l.era != 0 {
			raw = line(raw, "era", &l.era)
		}
		for i := range l.holds {
			raw = line(raw, "holder", l.holds[i].words()...)
		}
		for _, w := range l.queue {
			raw = line(raw, "waiter", w.words()...)
		}
	}
	for _, e := range st.released {
		raw = line(raw, "released", &e.nonce, &e.until)
	}
	for _, e := range st.abandoned {
		raw = line(raw, "abandoned", &e.nonce, &e.until)
	}
	return raw
}

// words are what stands in a line behind its kind.
func (h *holder) words() []any {
	words := []any{&h.nonce, &h.token, &h.until, &h.both, &h.owner}
	if h.shared() {
		words = append(words, &h.mode, &h.limit, &h.slot)
	}
	return words
}

func (w *waiter) words() []any {
	words := []any{&w.nonce, &w.until, &w.socket}
	if w.shared() {
		words = append(words, &w.mode, &w.limit, &w.called)
	}
	return words
}

// line appends a line.
func line(raw []byte, kind string, words ...any) []byte {
	raw = append(raw, kind...)
	for _, w := range words {
		raw = append(raw, ' ')
		switch w := w.(type) {
		case *string:
			raw = append(raw, url.PathEscape(*w)...)
		case *int64:
			raw = strconv.AppendInt(raw, *w, 10)
		case *backend.Mode:
			raw = append(raw, w.String()...)
		}
	}
	return append(raw, '\n')
}

// scan reads what line has written behind the kind.
func scan(text string, words ...any) (err error) {
	more := true
	for _, w := range words {
		var word string
		if !more {
			return errors.New("it is too short")
		}
		word, text, more = strings.Cut(text, " ")
		switch w := w.(type) {
		case *string:
			*w, err = url.PathUnescape(word)
		case *int64:
			*w, err = strconv.ParseInt(word, 10, 64)
		case *backend.Mode:
			err = w.UnmarshalText([]byte(word))
		}
		if err != nil {
			return err
		}
	}
	if more {
		return errors.New("it is too long")
	}
	return nil
}

// decode reads the file of a bucket.
func decode(raw []byte, bucket int) (*state, error) {
	body, ok := bytes.CutPrefix(raw, []byte(firstLine(bucket)))
	if !ok {
		return nil, fmt.Errorf("it is empty, or not of this library, version and bucket: "+
			"it begins with %.60q, want %q", raw, firstLine(bucket))
	}
	i := bytes.LastIndex(body, []byte("\nsum ")) + 1
	got, want := string(body[i:]), sumLine(raw[:len(raw)-len(body)+i])
	if got != want {
		return nil, fmt.Errorf("it is damaged or cut short: it ends with %.40q, want %q", got, want)
	}
	d := decoder{st: newState("", -1)}
	for text := range strings.Lines(string(body[:i])) {
		if err := d.line(strings.TrimSuffix(text, "\n")); err != nil {
			return nil, fmt.Errorf("the line %.60q: %w", text, err)
		}
	}
	if d.st.boot == "" || !isToken(d.st.counter) {
		return nil, errors.New("the boot or the counter is missing or wrong")
	}
	for k, l := range d.st.locks {
		if !l.possible() {
			return nil, fmt.Errorf("the holders of %.60q cannot hold it at once", k.name)
		}
	}
	return d.st, nil
}

// decoder reads a state line by line.
type decoder struct {
	st   *state
	last *lock // of the last line that was one
}

func (d *decoder) line(text string) (err error) {
	st, ok := d.st, true
	kind, rest, _ := strings.Cut(text, " ")
	switch {
	case kind == "boot":
		err = scan(rest, &st.boot)
	case kind == "counter":
		err = scan(rest, &st.counter)
	case kind == "record":
		var k key
		var r record
		err = scan(rest, &k.prefix, &k.name, &r.data, &r.until)
		st.records[k] = r
	case kind == "lock":
		var k key
		d.last = &lock{}
		err = scan(rest, &k.prefix, &k.name, &d.last.freed)
		ok = st.locks[k] == nil && backend.CheckPrefix(k.prefix) == nil &&
			backend.CheckName(k.name) == nil
		st.locks[k] = d.last
	case kind == "era" && d.last != nil && d.last.era == 0:
		err = scan(rest, &d.last.era)
		ok = d.last.era > 0 && isToken(d.last.era)
	case kind == "holder" && d.last != nil:
		d.last.holds = append(d.last.holds, holder{way: wayIn(rest, 5)})
		h := &d.last.holds[len(d.last.holds)-1]
		shared := h.shared()
		err = scan(rest, h.words()...)
		ok = h.nonce != "" && isToken(h.token) && backend.CheckOwner(h.owner) == nil && h.shared() == shared
	case kind == "waiter" && d.last != nil:
		w := waiter{way: wayIn(rest, 3)}
		shared := w.shared()
		err = scan(rest, w.words()...)
		ok = w.nonce != "" && isSocket(w.socket) && w.shared() == shared
		d.last.queue = append(d.last.queue, w)
	case kind == "released" || kind == "abandoned":
		var e ended
		err = scan(rest, &e.nonce, &e.until)
		switch {
		case e.until == 0: // nobody's
		case kind == "released":
			st.released = append(st.released, e)
		default:
			st.abandoned = append(st.abandoned, e)
		}
	default:
		ok = false
	}
	if err == nil && !ok {
		err = errors.New("it is unknown, out of place, or a value in it is out of range")
	}
	return err
}

// wayIn returns a way that is shared if the line is: if it has more words than an exclusive one.
func wayIn(text string, exclusive int) (w way) {
	if strings.Count(text, " ") >= exclusive {
		w.mode = backend.Reader
	}
	return w
}

// possible reports whether those that hold the lock may do so at once: as Admits says, permits in different slots, and
// readers of no more than the era's token.
func (l *lock) possible() bool {
	n := len(l.holds)
	if n == 0 || n == 1 && !l.holds[0].shared() {
		return l.era == 0
	}
	last := l.holds[n-1]
	others := lock{holds: l.holds[:n-1]}
	there, _ := others.served("")
	slots := map[int64]bool{}
	for _, h := range l.holds {
		if last.mode == backend.Reader != (l.era != 0) || h.token > l.era && l.era != 0 {
			return false
		}
		if h.mode == backend.Permit && (h.slot < 0 || h.slot >= h.limit || slots[h.slot]) {
			return false
		}
		slots[h.slot] = h.mode == backend.Permit
	}
	return last.request().Admits(there)
}

func isToken(n int64) bool { return n >= 0 && n <= maxToken }
