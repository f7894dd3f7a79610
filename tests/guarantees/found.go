package guarantees

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"time"
)

// A Found is what came of running a cell.
type Found struct {
	Fault   Fault  `json:"fault"`
	Backend string `json:"backend"`
	Date    string `json:"date"`    // of the last trial, UTC
	Servers string `json:"servers"` // and their version
	Trials  int    `json:"trials"`
	Locks   int    `json:"locks"`   // that were granted in them
	Second  int    `json:"second"`  // trials in which two held a lock at once
	Broken  int    `json:"broken"`  // trials that broke what is promised, or whose history could not be judged
	Slowest int64  `json:"slowest"` // milliseconds until what the fault took was there again; 0: not measured
}

// Load returns what a file has; nothing, if it is not there.
func Load(path string) ([]Found, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var found []Found
	if err == nil {
		err = json.Unmarshal(raw, &found)
	}
	return found, err
}

// Record puts what was found into a file, in the place of what it had of the same cells.
func Record(path string, found []Found) error {
	all, err := Load(path)
	if err != nil {
		return err
	}
	for _, f := range found {
		all = slices.DeleteFunc(all, func(g Found) bool { return g.Fault == f.Fault && g.Backend == f.Backend })
		all = append(all, f)
	}
	var sorted []Found // as the table is
	for _, c := range Table() {
		for _, f := range all {
			if f.Fault == c.Fault && f.Backend == c.Backend {
				sorted = append(sorted, f)
			}
		}
	}
	return write(path, sorted)
}

// Today is a Found's date.
func Today() string { return time.Now().UTC().Format(time.DateOnly) }
