package backend

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// An Opener makes a driver from a URL. It takes its keys from q; what it leaves
// is refused by [Open], which also closes the driver then. u has no query any more, but its host
// may be a list: "h1:6379,h2:6379" ([Hosts] splits it). Opening connects: an
// opener returns an error if the store does not answer within ctx.
type Opener func(ctx context.Context, u *url.URL, q *Query) (Driver, error)

var registry struct {
	sync.RWMutex
	openers map[string]Opener
}

// Register makes a URL scheme known. Drivers call it from init. It panics if
// the scheme is taken or open is nil, as database/sql does.
func Register(scheme string, open Opener) {
	registry.Lock()
	defer registry.Unlock()
	if open == nil {
		panic("backend: Register of " + scheme + " without an opener")
	}
	if _, dup := registry.openers[scheme]; dup {
		panic("backend: Register called twice for scheme " + scheme)
	}
	if registry.openers == nil {
		registry.openers = map[string]Opener{}
	}
	registry.openers[scheme] = open
}

// Schemes returns the registered URL schemes, sorted.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.openers))
}

// Open makes the driver that rawURL names. engine takes the keys that are not
// the driver's from the query first; it may be nil. The error matches
// [ErrInvalid] for a bad URL, an unknown scheme or an unknown key, and never
// shows a password.
func Open(ctx context.Context, rawURL string, engine func(*Query)) (Driver, error) {
	u, err := ParseURL(rawURL)
	if err != nil {
		return nil, err
	}
	registry.RLock()
	open := registry.openers[u.Scheme]
	registry.RUnlock()
	if open == nil {
		return nil, unknownScheme(u.Scheme)
	}
	q, err := newQuery(u)
	if err != nil {
		return nil, err
	}
	u.RawQuery = ""
	if engine != nil {
		engine(q)
	}
	// Bad values among the engine's keys are found before anything is dialled; a
	// driver does the same for its own with q.Err.
	if q.bad != nil {
		return nil, q.bad
	}
	d, err := open(ctx, u, q)
	if err != nil {
		return nil, unreached(u, err)
	}
	if err := q.Err(); err != nil {
		_ = d.Close() // the URL's error is the one to report
		return nil, err
	}
	return d, nil
}

// unreached names the hosts in the error of a store that did not answer, where the client did not.
func unreached(u *url.URL, err error) error {
	if Final(err) || u.Host == "" {
		return err
	}
	for h := range strings.SplitSeq(u.Host, ",") {
		if strings.Contains(err.Error(), h) {
			return err
		}
	}
	return fmt.Errorf("%s: %w", u.Host, err)
}

// near returns the scheme that scheme is one slip away from: a letter too many, too few or another
// one, or two that have changed places.
func near(scheme string, of []string) string {
	for _, s := range of {
		if slip(scheme, s) || slip(s, scheme) {
			return s
		}
	}
	return ""
}

// slip reports whether b is a with one letter left out, replaced or changed with the next.
func slip(a, b string) bool {
	for i := range len(a) {
		head, tail := a[:i], a[i+1:]
		switch {
		case head+tail == b,
			len(b) == len(a) && b[:i] == head && b[i+1:] == tail,
			tail != "" && head+tail[:1]+a[i:i+1]+tail[1:] == b:
			return true
		}
	}
	return false
}

func unknownScheme(scheme string) error {
	known := Schemes()
	if like := near(scheme, known); like != "" {
		return Invalid("URL scheme %q: did you mean %s://? Registered are %s", scheme, like, strings.Join(known, ", "))
	}
	have := "none is registered"
	if len(known) > 0 {
		have = "registered are " + strings.Join(known, ", ")
	}
	var add []string
	for _, e := range Catalog() {
		for _, s := range e.Schemes {
			if s == scheme {
				return Invalid("URL scheme %q: %s; import _ %q to add it", scheme, have, e.Import)
			}
			if !slices.Contains(known, s) {
				add = append(add, fmt.Sprintf("%s by import _ %q", s, e.Import))
			}
		}
	}
	if len(add) > 0 {
		have += "; this version could also have " + strings.Join(add, ", ")
	}
	return Invalid("URL scheme %q: %s", scheme, have)
}

// ParseURL splits a backend's URL. Unlike url.Parse it takes a list of hosts,
// and its error never quotes the URL, which may hold a password.
func ParseURL(rawURL string) (*url.URL, error) {
	control := func(r rune) bool { return r < ' ' || r == 0x7f }
	if strings.TrimSpace(rawURL) != rawURL || strings.ContainsFunc(rawURL, control) {
		return nil, Invalid("the URL has white space around it or a control character in it, such as the newline " +
			"at the end of a secret: leave that out")
	}
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		if s, _, ok := strings.Cut(rawURL, ":"); ok && slices.Contains(Schemes(), strings.ToLower(s)) {
			want := strings.ToLower(s) + "://host[:port]"
			if strings.EqualFold(s, "file") {
				want = "file:///var/lib/locks"
			}
			return nil, Invalid("the URL has no scheme with // behind it: want one such as %s", want)
		}
		return nil, Invalid("the URL has no scheme: want " +
			"scheme://[user:password@]host[:port][,host…]/path?key=value, such as " +
			"redis://localhost:6379/0 or file:///var/lib/locks")
	}
	if !isScheme(scheme) {
		return nil, Invalid("the URL's scheme is not one: want letters, digits, + - . before ://")
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	authority, tail := rest[:end], rest[end:]
	if authority != "" && strings.Contains(tail, "@") {
		// It may be what follows a password: what stands before it must not be taken for a path and shown.
		return nil, Invalid("the %q URL has an @ behind its hosts: percent-encode @ as %%40 "+
			"there, and / ? # in a password as %%2F %%3F %%23", strings.ToLower(scheme))
	}
	user, hosts := "", authority
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		user, hosts = authority[:i+1], authority[i+1:]
	}
	u, err := url.Parse(scheme + "://" + user + "host" + tail)
	if err != nil {
		// url.Parse quotes what it could not read.
		return nil, Invalid("the URL of scheme %q cannot be read: want "+
			"scheme://[user:password@]host[:port][,host…]/path?key=value with reserved "+
			"characters (such as : / ? # @ %% in a password) percent-encoded", scheme)
	}
	u.Scheme = strings.ToLower(scheme)
	u.Host = hosts
	for h := range strings.SplitSeq(hosts, ",") {
		// The parts are checked one by one, for url.Parse knows no lists.
		if _, err := url.Parse("x://" + h + "/"); err != nil || (h == "" && hosts != "") ||
			strings.Count(h[strings.LastIndexByte(h, ']')+1:], ":") > 1 {
			return nil, Invalid("the hosts of the %q URL cannot be read: want "+
				"host[:port][,host[:port]…], an IPv6 address in brackets", u.Scheme)
		}
		one := url.URL{Host: h}
		if port := one.Port(); port != "" {
			if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
				return nil, Invalid("a port of the %q URL is out of range: want 1 to 65535", u.Scheme)
			}
		}
	}
	if u.Fragment != "" || strings.Contains(tail, "#") {
		return nil, Invalid("the %q URL has a fragment (#…): percent-encode # as %%23", u.Scheme)
	}
	return u, nil
}

// Hosts returns the host:port pairs of a URL, with port added where none is given.
// Without a host it returns localhost.
func Hosts(u *url.URL, port string) []string {
	var hosts []string
	for h := range strings.SplitSeq(u.Host, ",") {
		one := url.URL{Host: h}
		hosts = append(hosts, net.JoinHostPort(cmp.Or(one.Hostname(), "localhost"), cmp.Or(one.Port(), port)))
	}
	return hosts
}

// isScheme keeps what may be a mistyped secret out of messages.
func isScheme(s string) bool {
	return s != "" && strings.Trim(strings.ToLower(s), "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}
