package backend

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// DefaultPrefix is the keyspace of a backend whose URL has no prefix=.
const DefaultPrefix = "fencelock:"

// Query hands out the keys of a URL, each once, and remembers which were known:
// [Open] makes one error of all that were not. A method returns its default for a key that is
// absent, and also for a bad value, which the query keeps as its error.
type Query struct {
	scheme string
	values url.Values
	known  []string
	bad    error
}

func newQuery(u *url.URL) (*Query, error) {
	v, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, Invalid("the query of the %q URL cannot be read: want key=value&key=value "+
			"with special characters percent-encoded", u.Scheme)
	}
	return &Query{scheme: u.Scheme, values: v}, nil
}

// Err returns the first bad value, or an error for the keys that nothing asked
// for, with the known ones; nil if all is well. Both match [ErrInvalid]. A driver calls it once it has
// taken its keys, before it dials.
func (q *Query) Err() error {
	if q.bad != nil {
		return q.bad
	}
	var unknown []string
	for k := range q.values {
		if !slices.Contains(q.known, k) {
			unknown = append(unknown, shown(k))
		}
	}
	if len(unknown) == 0 {
		return nil
	}
	slices.Sort(unknown)
	slices.Sort(q.known)
	q.known = slices.Compact(q.known)
	return Invalid("unknown key %s in the %q URL: known are %s",
		strings.Join(unknown, ", "), q.scheme, strings.Join(q.known, ", "))
}

// Prefix takes the key prefix: the keyspace, which may be empty.
func (q *Query) Prefix() string {
	p := q.String("prefix", DefaultPrefix)
	if err := CheckPrefix(p); err != nil {
		q.fail(err)
	}
	return p
}

// CheckPrefix returns nil for a prefix that a backend can have, and otherwise
// an error that matches [ErrInvalid].
func CheckPrefix(p string) error { return checkText("prefix", p, 0) }

// String takes a key as it is.
func (q *Query) String(key, def string) string {
	q.known = append(q.known, key)
	vs, ok := q.values[key]
	if !ok {
		return def
	}
	if len(vs) > 1 {
		q.fail(Invalid("key %q stands %d times in the %q URL: once is allowed", key, len(vs), q.scheme))
	}
	return vs[0]
}

// Has reports whether the URL has the key, and takes it as known.
func (q *Query) Has(key string) bool {
	q.known = append(q.known, key)
	return q.values.Has(key)
}

// Duration takes a key such as 500ms, 15s or 2m. It must be positive.
func (q *Query) Duration(key string, def time.Duration) time.Duration {
	return parsed(q, key, def, "a positive duration such as 500ms, 15s or 2m", func(s string) (time.Duration, bool) {
		d, err := time.ParseDuration(s)
		return d, err == nil && d > 0
	})
}

// Int takes a whole number from least to most.
func (q *Query) Int(key string, def, least, most int) int {
	want := fmt.Sprintf("a whole number from %d to %d", least, most)
	return parsed(q, key, def, want, func(s string) (int, bool) {
		n, err := strconv.Atoi(s)
		return n, err == nil && n >= least && n <= most
	})
}

// Bool takes true or false, 1 or 0.
func (q *Query) Bool(key string, def bool) bool {
	return parsed(q, key, def, "true or false", func(s string) (bool, bool) {
		b, err := strconv.ParseBool(s)
		return b, err == nil
	})
}

// parsed takes a key of a kind.
func parsed[T any](q *Query, key string, def T, want string, parse func(string) (T, bool)) T {
	s := q.String(key, "")
	if !q.values.Has(key) {
		return def
	}
	v, ok := parse(s)
	if !ok {
		q.fail(Invalid("%s=%q in the %q URL: want %s", key, shorten(s), q.scheme, want))
		return def
	}
	return v
}

func (q *Query) fail(err error) {
	if q.bad == nil {
		q.bad = err
	}
}

// shown quotes a key, unless it may be the rest of a password in which a ? was not
// percent-encoded.
func shown(key string) string {
	if strings.Trim(strings.ToLower(key), "abcdefghijklmnopqrstuvwxyz0123456789_-.") != "" {
		return "(one with special characters: is a ? in a password not percent-encoded?)"
	}
	return strconv.Quote(shorten(key))
}
