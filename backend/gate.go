package backend

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A migration moves names from one store to another in three deploys. What
// keeps two clients of different phases apart is a gate in each store: a record
// that the acquire reads in the very step that grants. Package backend/migrate runs the
// migration over any two drivers that are [Mover].

// Phase is which of the two stores of a migration a client locks in. The empty
// phase is that of a client that knows of no migration.
type Phase string

// The phases, in the order of the deploys.
const (
	PhaseFrom Phase = "from" // the old store only
	PhaseBoth Phase = "both" // the old store, then the new one
	PhaseTo   Phase = "to"   // the new store only
)

// GateState says whom a gate lets in.
type GateState string

// The states of a gate. A store without a gate lets everyone in but clients of
// PhaseTo, who need a gate that was opened for them.
const (
	GateOpen GateState = "open" // everyone
	GateBoth GateState = "both" // clients of its migration in PhaseBoth only
)

// A Pattern matches names: the name itself, or with * at its end every name that
// begins with what is before the *.
type Pattern struct {
	Match string `json:"match"`
	Stays bool   `json:"stays,omitempty"` // such names do not move
}

// Scope says which names a migration moves: the first pattern that matches a
// name decides; a name that none matches stays.
type Scope []Pattern

// Moves reports whether name is in scope.
func (s Scope) Moves(name string) bool {
	for _, p := range s {
		if p.matches(name) {
			return !p.Stays
		}
	}
	return false
}

func (p Pattern) matches(name string) bool {
	head, star := strings.CutSuffix(p.Match, "*")
	return name == p.Match || star && strings.HasPrefix(name, head)
}

// String returns the patterns, those of names that stay with a ! in front.
func (s Scope) String() string {
	parts := make([]string, len(s))
	for i, p := range s {
		if p.Stays {
			parts[i] = "!"
		}
		parts[i] += p.Match
	}
	return strings.Join(parts, ", ")
}

// A Gate is the record of one migration in one store. It outlives the
// migration: a closed one is the tombstone that refuses stragglers.
type Gate struct {
	Move  string    `json:"move"` // the migration's name
	Scope Scope     `json:"scope"`
	State GateState `json:"state"`
	// Epoch rises with every change. It is at least the µs since 1970 of the
	// change, so that it rises over a loss of the store's data too.
	Epoch int64 `json:"epoch"`
	// Torn: the store keeps the gate in several places, and they do not agree, because a
	// change was interrupted. State is GateBoth then, and Epoch the greatest.
	Torn bool `json:"torn,omitempty"`
}

// Admits reports whether a request of this phase and migration may pass. It is
// asked about names in g's scope only.
func (g Gate) Admits(move string, phase Phase) bool {
	return g.State == GateOpen || g.State == GateBoth && phase == PhaseBoth && move == g.Move
}

// Admit returns nil if gates let r in, and otherwise a *[GateError]. gated
// reports whether one of them belongs to r's own migration. A driver that checks its gates in
// a script of the store does there what this does.
func Admit(gates []Gate, r *Request) (gated bool, err error) {
	for _, g := range gates {
		if !g.Scope.Moves(r.Name) {
			continue
		}
		gated = gated || g.Move == r.Move
		if !g.Admits(r.Move, r.Phase) {
			return gated, &GateError{Move: g.Move, Epoch: g.Epoch, Phase: r.Phase}
		}
	}
	if r.Phase == PhaseTo && !gated {
		return false, &GateError{Move: r.Move, Phase: r.Phase}
	}
	return gated, nil
}

// GateError says that a gate refused an acquisition. It matches [ErrUnsupported].
type GateError struct {
	Move  string // the migration of the gate
	Epoch int64  // of the gate; 0: there is none, and PhaseTo needs one
	Phase Phase  // of the request
}

// Error says which gate refused whom, and what to do.
func (e *GateError) Error() string {
	who := "clients that know of no migration"
	if e.Phase != "" {
		who = "clients in phase " + string(e.Phase)
	}
	if e.Epoch == 0 {
		return fmt.Sprintf("%v: migration %q has not opened this store to %s: deploy phase both "+
			"first, then phase to, or run fencelock migrate advance", ErrUnsupported, e.Move, who)
	}
	return fmt.Sprintf("%v: migration %q has closed this store to %s (epoch %d): this program is "+
		"a phase behind or ahead of the others: deploy phase both, "+
		"and see fencelock migrate status", ErrUnsupported, e.Move, who, e.Epoch)
}

// Is reports whether target is ErrUnsupported.
func (e *GateError) Is(target error) bool { return target == ErrUnsupported }

// ErrGateMoved is SetGate's answer when another has changed the gate meanwhile.
var ErrGateMoved = errors.New("another client has changed the gate")

// Lower, as the epoch that SetGate expects, stands for every lower one than the new one.
const Lower = -1

// A Client is what one Locker reports of itself while it takes part in a
// migration. It informs operators; nothing is safe because of it.
type Client struct {
	ID       string        `json:"id"` // random, one for each Locker
	Move     string        `json:"move"`
	Phase    Phase         `json:"phase"`
	Host     string        `json:"host"`
	PID      int           `json:"pid"`
	MaxTTL   time.Duration `json:"max_ttl"` // the longest TTL + grace it has asked for, in nanoseconds
	Since    time.Time     `json:"since"`
	Reported time.Time     `json:"reported"` // by the client's clock
}

// CheckGate returns nil for a gate that a store can keep, and otherwise an
// error that matches [ErrInvalid].
func CheckGate(g Gate) error {
	if err := CheckName(g.Move); err != nil {
		return fmt.Errorf("the migration's name: %w", err)
	}
	switch {
	case g.State != GateOpen && g.State != GateBoth:
		return Invalid("gate state %q: want %s or %s", g.State, GateOpen, GateBoth)
	case len(g.Scope) == 0:
		return Invalid("migration %q moves no names: want at least one pattern, such as inventory/*", g.Move)
	case g.Epoch <= 0:
		return Invalid("gate epoch %d: want more than 0", g.Epoch)
	}
	for _, p := range g.Scope {
		if p.Match == "" || p.Match != "*" && CheckName(strings.TrimSuffix(p.Match, "*")) != nil {
			return Invalid("pattern %q of migration %q: want a name, "+
				"or the beginning of one followed by *", p.Match, g.Move)
		}
	}
	return nil
}
