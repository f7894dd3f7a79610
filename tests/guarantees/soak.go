package guarantees

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
)

// Figures is what a backend went through in make soak.
type Figures struct {
	Minutes       float64 `json:"minutes"`
	Rounds        int     `json:"rounds"`
	Locks         int     `json:"lock_operations"` // granted, and given back or lost
	Pauses        int     `json:"pauses"`          // of clients
	Kills         int     `json:"kills"`           // of clients and servers
	Partitions    int     `json:"partitions"`      // clients and servers that were silent
	Lost          int     `json:"lost_replies"`
	SecondHolders int     `json:"second_holders"` // seen in rounds with a fault under which there may be one
	Violations    int     `json:"violations"`     // rounds that broke what is promised
	Unknown       int     `json:"unknown"`        // rounds whose history could not be judged
	Lacking       int     `json:"lost_acknowledged_increments"`
	Stalled       int     `json:"stalled"`    // rounds after which a process got no lock for 40 s
	BrokenOff     int     `json:"broken_off"` // rounds that told nothing
}

// Add returns the sum.
func (f Figures) Add(g Figures) Figures {
	return Figures{
		f.Minutes + g.Minutes, f.Rounds + g.Rounds, f.Locks + g.Locks, f.Pauses + g.Pauses, f.Kills + g.Kills,
		f.Partitions + g.Partitions, f.Lost + g.Lost, f.SecondHolders + g.SecondHolders, f.Violations + g.Violations,
		f.Unknown + g.Unknown, f.Lacking + g.Lacking, f.Stalled + g.Stalled, f.BrokenOff + g.BrokenOff,
	}
}

// A Soak is the figures by version and backend.
type Soak map[string]map[string]Figures

// LoadSoak returns what a file has; an empty Soak, if it is not there.
func LoadSoak(path string) (Soak, error) {
	s := Soak{}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	return s, err
}

// Tally adds figures of a version's backend to those of a file.
func Tally(path, version, backend string, now Figures) error {
	all, err := LoadSoak(path)
	if err != nil {
		return err
	}
	if all[version] == nil {
		all[version] = map[string]Figures{}
	}
	all[version][backend] = all[version][backend].Add(now)
	return write(path, all)
}

// write replaces a file with v as JSON. It is renamed into place: what is there is always complete.
func write(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// RenderSoak makes the table of the figures.
func RenderSoak(s Soak) string {
	var b strings.Builder
	b.WriteString("| version | backend | hours | locks | pauses | kills | partitions | lost " +
		"replies | second holders where one is possible | violations | unknown | lost increments " +
		"| stalled | broken off |\n")
	b.WriteString("|---" + strings.Repeat("|---", 13) + "|\n")
	for _, version := range slices.Sorted(maps.Keys(s)) {
		for _, k := range Backends() {
			f, ok := s[version][k.Backend]
			if !ok {
				continue
			}
			fmt.Fprintf(&b,
				"| %s | %s | %.1f | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n",
				version, k.Backend, f.Minutes/60, f.Locks,
				f.Pauses, f.Kills, f.Partitions, f.Lost, f.SecondHolders, f.Violations, f.Unknown,
				f.Lacking, f.Stalled, f.BrokenOff)
		}
	}
	return b.String()
}
