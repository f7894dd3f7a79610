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
//	holder NONCE TOKEN UNTIL MIGRATION OWNER   of the lock above
//	waiter NONCE UNTIL SOCKET                  of the lock above, in order
//	released NONCE UNTIL
//	abandoned NONCE UNTIL
//	sum CRC-64
//
// Times are nanoseconds of the shared clock. The sum is that of all that stands before its line.
const formatVersion = 1

var table = crc64.MakeTable(crc64.ECMA)

func sumLine(raw []byte) string { return fmt.Sprintf("sum %016x\n", crc64.Checksum(raw, table)) }

func firstLine(bucket int) string {
	return fmt.Sprintf("fencelock state %d bucket %d\n", formatVersion, bucket)
}

// encode returns the file of a bucket.
func (st *state) encode(bucket int) []byte {
	raw := make([]byte, 0, 256+192*len(st.locks)+64*(len(st.released)+len(st.abandoned)))
	raw = append(raw, firstLine(bucket)...)
	raw = line(raw, "boot", &st.boot)
	raw = line(raw, "counter", &st.counter)
	for k, r := range st.records {
		raw = line(raw, "record", &k.prefix, &k.name, &r.data, &r.until)
	}
	for k, l := range st.locks {
		raw = line(raw, "lock", &k.prefix, &k.name, &l.freed)
		if l.holder != nil {
			raw = line(raw, "holder", l.holder.words()...)
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
	return append(raw, sumLine(raw)...)
}

// words are what stands in a line behind its kind.
func (h *holder) words() []any { return []any{&h.nonce, &h.token, &h.until, &h.both, &h.owner} }
func (w *waiter) words() []any { return []any{&w.nonce, &w.until, &w.socket} }

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
	case kind == "holder" && d.last != nil && d.last.holder == nil:
		h := &holder{}
		err = scan(rest, h.words()...)
		ok = h.nonce != "" && isToken(h.token) && backend.CheckOwner(h.owner) == nil
		d.last.holder = h
	case kind == "waiter" && d.last != nil:
		var w waiter
		err = scan(rest, w.words()...)
		ok = w.nonce != "" && isSocket(w.socket)
		d.last.queue = append(d.last.queue, w)
	case kind == "released" || kind == "abandoned":
		var e ended
		err = scan(rest, &e.nonce, &e.until)
		if kind == "released" {
			st.released = append(st.released, e)
		} else {
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

func isToken(n int64) bool { return n >= 0 && n <= maxToken }
