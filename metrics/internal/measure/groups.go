package measure

import (
	"strings"
	"sync"

	"github.com/fencelock/fencelock/backend"
)

// Other is the resource of all names that belong to no group.
const Other = "other"

// MostGroups is how many groups there are at most, Other not counted, unless the user says otherwise.
const MostGroups = 100

// Groups maps names to resources: the values of a label, whose number is bounded whatever the names are.
type Groups struct {
	of   func(name string) string
	most int

	mu    sync.RWMutex
	known map[string]struct{}
}

// NewGroups groups names by a function; nil means BeforeSlash. The first groups that it returns have their
// own name, as many as most says (below 1: MostGroups), and all later ones are Other.
func NewGroups(of func(name string) string, most int) *Groups {
	if of == nil {
		of = BeforeSlash
	}
	if most < 1 {
		most = MostGroups
	}
	return &Groups{of: of, most: most, known: map[string]struct{}{}}
}

// BeforeSlash returns what is before the first slash of a name, and "" if there is nothing.
func BeforeSlash(name string) string {
	group, _, _ := strings.Cut(name, "/")
	if len(group) == len(name) {
		return ""
	}
	return group
}

// Of returns the resource that a name belongs to, in valid UTF-8 and never empty. A name that no
// backend would take is Other.
func (g *Groups) Of(name string) string {
	if backend.CheckName(name) != nil {
		return Other
	}
	group := strings.ToValidUTF8(g.of(name), "\uFFFD")
	if group == "" || group == Other {
		return Other
	}
	g.mu.RLock()
	_, known := g.known[group]
	full := len(g.known) >= g.most
	g.mu.RUnlock()
	switch {
	case known:
		return group
	case full:
		return Other
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, known := g.known[group]; !known && len(g.known) >= g.most {
		return Other
	}
	g.known[strings.Clone(group)] = struct{}{}
	return group
}
