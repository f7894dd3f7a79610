package postgres

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/backend"
)

// gates are those of the keyspace as the client has last seen them. The zero value is a store without any.
type gates struct {
	version int64 // fencelock_gates_now
	all     []backend.Gate
}

// sight is what the client itself has seen of the gates for a request.
type sight struct {
	version *int64 // of gates that let it pass; nil: the server has to look
	ungated bool   // none of them is of its migration
}

// look looks at the gates that the client knows. The server looks whether they still are the gates when the lock is won. If so it need
// not look at each, and otherwise it decides, and tells what they are.
func (st *store) look(r *backend.Request) sight {
	g := st.gates.Load()
	gated, err := backend.Admit(g.all, r)
	if err != nil {
		return sight{}
	}
	return sight{version: &g.version, ungated: r.Phase != "" && !gated}
}

// reply is the server's to an acquisition, in words.
type reply []string

func (a reply) word(i int) string {
	if i >= len(a) {
		return ""
	}
	return a[i]
}

// number is a word that is a number of 0 or more, and otherwise -1.
func (a reply) number(i int) int64 {
	n, err := strconv.ParseInt(a.word(i), 10, 64)
	if err != nil {
		return -1
	}
	return max(n, -1)
}

// told reads a reply, and the gates that the server tells behind it. ungated is for a grant: the fourth of the words, or what the client has seen
// where the gates are still those.
func (st *store) told(answer string, seen sight) (a reply, ungated bool, err error) {
	line, news, moved := strings.Cut(answer, "\n")
	a = strings.Fields(line)
	if !moved {
		return a, seen.ungated, nil
	}
	g := &gates{}
	number, list, _ := strings.Cut(news, " ")
	if g.version, err = strconv.ParseInt(number, 10, 64); err == nil {
		g.all, err = readGates(list)
	}
	if err != nil {
		return nil, false, errOr(nil, news)
	}
	st.gates.Store(g)
	return a, a.word(3) == "t", nil
}

// readGates reads the list of fencelock_gates.
func readGates(list string) ([]backend.Gate, error) {
	var raw []struct {
		Move, State string
		Scope       []string
		Epoch       int64
	}
	if err := json.Unmarshal([]byte(list), &raw); err != nil {
		return nil, err
	}
	all := make([]backend.Gate, len(raw))
	for i, g := range raw {
		move, err := hex.DecodeString(g.Move)
		if err != nil {
			return nil, err
		}
		patterns := make([][]byte, len(g.Scope))
		for j, p := range g.Scope {
			if patterns[j], err = hex.DecodeString(p); err != nil {
				return nil, err
			}
		}
		s, ok := scope(patterns)
		all[i] = backend.Gate{Move: string(move), Scope: s, State: backend.GateState(g.State), Epoch: g.Epoch}
		if err := backend.CheckGate(all[i]); err != nil || !ok {
			return nil, backend.Invalid("the gate of migration %q in fencelock_gate has what no driver writes there", move)
		}
	}
	return all, nil
}
