package config

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/migrate"
)

// url reads the URL of a backend. Its scheme, mode and ttl= tell the backend's promises without a connection.
func (l *loader) url(b *Backend, u text, hasTTL bool) {
	what := "backend " + quote(b.Name) + ": url"
	b.url, b.traits = func() string { return u.value }, u.at
	parsed, err := backend.ParseURL(u.value)
	if err != nil {
		why := plain(err)
		if u.value != u.shown { // why may quote the scheme, which may be the value of a variable
			why = "the URL cannot be read: want " +
				"scheme://[user:password@]host[:port][,host…]/path?key=value with reserved " +
				"characters percent-encoded"
		}
		l.problems.add(u.at, "%s: %s", what, why)
		return
	}
	query, err := url.ParseQuery(parsed.RawQuery)
	if err != nil {
		l.problems.add(u.at,
			"%s: the query cannot be read: want key=value&key=value with special "+
				"characters percent-encoded", what)
		return
	}
	if query.Has("ttl") {
		d, err := time.ParseDuration(query.Get("ttl"))
		switch {
		case hasTTL:
			l.problems.add(u.at, "%s: the TTL is given twice, by ttl: and by ttl= in the URL: want one of them", what)
		case err != nil || d <= 0:
			l.problems.add(u.at, "%s: its ttl= is no duration: want one such as 500ms, 15s or 2m", what)
		case d > mostTTL:
			l.problems.add(u.at, "%s: its ttl= is too long: want at most 8760h", what)
		default:
			b.TTL = d
		}
	}
	b.Scheme = parsed.Scheme
	traits, known, wrong := traitsOf(b.Scheme, query)
	if wrong != "" {
		l.problems.add(u.at, "%s: %s", what, wrong)
		return
	}
	b.Traits, b.Known = traits, known
	l.checkTTL(b)
}

// mostTTL is the longest TTL, as for fencelock.WithTTL.
const mostTTL = 365 * 24 * time.Hour

// checkTTL refuses a TTL that the backend cannot keep.
func (l *loader) checkTTL(b *Backend) {
	if b.Known && b.LeaseTTL() < b.Traits.MinTTL {
		l.problems.add(b.traits,
			"backend %s: a ttl of %v is too short for %s: at least %v is needed",
			quote(b.Name), b.LeaseTTL(), b.Traits.Name, b.Traits.MinTTL)
	}
}

// traitsOf looks a URL's scheme and mode up in the catalog. known is false for a registered scheme that the catalog
// does not have.
func traitsOf(scheme string, query url.Values) (t backend.Traits, known bool, wrong string) {
	catalog := backend.Catalog()
	var all []string
	for i, e := range catalog {
		all = append(all, e.Schemes...)
		if !slices.Contains(e.Schemes, scheme) {
			continue
		}
		// The modes of a scheme follow its entry; their names end in -mode.
		modes := catalog[i : i+1]
		for j := i + 1; j < len(catalog) && len(catalog[j].Schemes) == 0; j++ {
			modes = catalog[i : j+1]
		}
		mode := query.Get("mode")
		if len(modes) == 1 || mode == "" && !query.Has("mode") {
			return e.Traits, true, ""
		}
		var words []string
		for _, m := range modes {
			_, word, _ := strings.Cut(m.Traits.Name, "-")
			if word == mode {
				return m.Traits, true, ""
			}
			words = append(words, word)
		}
		return t, false, "its mode= is none: want " + strings.Join(words, " or ")
	}
	if slices.Contains(backend.Schemes(), scheme) {
		return t, false, ""
	}
	slices.Sort(all)
	return t, false, "there is no backend of its scheme: there are " + strings.Join(all, ", ")
}

// movingTraits returns the promises of a migration: the promises of the store that it locks in, or the lesser of two
// stores, but neither readers nor permits in any phase, as migrate.New.
func movingTraits(phase backend.Phase, from, to backend.Traits) backend.Traits {
	var t backend.Traits
	switch phase {
	case backend.PhaseFrom:
		t = from
	case backend.PhaseTo:
		t = to
	default:
		t = migrate.TraitsOfBoth(from, to)
	}
	t.Readers, t.Permits = false, 0
	return t
}

// movingTTL returns the TTL of a migration without ttl:. It is the TTL of the store that it locks in, or the longer
// one of two stores.
func movingTTL(phase backend.Phase, from, to *Backend) time.Duration {
	switch {
	case phase == backend.PhaseFrom:
		return from.TTL
	case phase == backend.PhaseTo:
		return to.TTL
	case from.TTL == 0 && to.TTL == 0:
		return 0
	}
	return max(from.LeaseTTL(), to.LeaseTTL())
}
