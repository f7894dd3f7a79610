package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strings"
)

// A Result is what a test of tests/backends found on one version of a server.
type Result struct {
	Cell     string   `json:"cell"` // the version as scripts/versions.sh has it, such as "redis-8.0"
	Test     string   `json:"test"` // such as "TestRedisCluster"
	Version  string   `json:"version"`
	Date     string   `json:"date"`     // UTC
	Rules    int      `json:"rules"`    // that there were
	Kept     int      `json:"kept"`     // rules that are kept
	Excluded int      `json:"excluded"` // rules that this driver, or this way to reach it, is excluded from
	Broken   []string `json:"broken,omitempty"`
	Refused  string   `json:"refused,omitempty"` // the error of Open: the server is too old
}

// String says it in a line.
func (r Result) String() string {
	if r.Refused != "" {
		return fmt.Sprintf("%s refused: %s", r.Version, r.Refused)
	}
	return fmt.Sprintf("%s %s: %d kept, %d excluded, %d broken %v", r.Test, r.Version, r.Kept, r.Excluded,
		len(r.Broken), r.Broken)
}

// tooOld is the test of a server that must be refused.
const tooOld = "TestTooOld"

var (
	// started is what the launcher logs of a server, or of several that belong together.
	started = regexp.MustCompile(`servers: \w+ (\d[\w.]*) `)
	// refused is what the test of a server that is too old logs.
	refused = regexp.MustCompile(`refused: .*?invalid: (.*?)(?: \(ERR|\n)`)
)

// read reads the events of go test -json: the result of each test, and the output of those that failed.
func read(events io.Reader) (found []Result, log string, err error) {
	of := map[string]*Result{}
	var order []string
	said := map[string]string{}
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e struct{ Action, Test, Output string }
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, "", fmt.Errorf("event %q: %w", lines.Text(), err)
		}
		name, rest, _ := strings.Cut(e.Test, "/")
		_, rule, isRule := strings.Cut(rest, "/") // rules/K11
		r := of[name]
		if r == nil && name != "" {
			r = &Result{Test: name}
			of[name], order = r, append(order, name)
		}
		switch e.Action {
		case "output", "build-output":
			said[e.Test] += e.Output
			if m := started.FindStringSubmatch(e.Output); m != nil && r != nil {
				r.Version = m[1]
			}
			if m := refused.FindStringSubmatch(e.Output); m != nil && r != nil && name == tooOld {
				r.Refused = m[1]
			}
		case "pass":
			if isRule {
				r.Kept++
			}
		case "skip":
			if isRule {
				r.Excluded++
			}
		case "fail":
			log += said[e.Test]
			if isRule {
				r.Broken = append(r.Broken, rule)
			} else if name != "" && rest == "" && len(r.Broken) == 0 {
				r.Broken = []string{"it did not run to its end"}
			}
		}
	}
	for _, name := range order {
		found = append(found, *of[name])
	}
	return found, log, lines.Err()
}

// load returns what a file has; nothing, if it is not there.
func load(path string) (all []Result, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(raw, &all)
	}
	return all, err
}

// put puts what was found of a cell into a file, in the place of what it had of it.
func put(path, cell string, found []Result) error {
	all, err := load(path)
	if err != nil {
		return err
	}
	all = append(slices.DeleteFunc(all, func(r Result) bool { return r.Cell == cell }), found...)
	raw, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(raw, '\n'), 0o644)
}

// names are what the tests' harnesses are called.
var names = map[string]string{
	"TestRedis": "redis", "TestRedisSentinel": "redis, Sentinel", "TestRedisCluster": "redis, Cluster",
	"TestRedlock": "redlock ×3", "TestEtcd": "etcd", "TestZooKeeper": "zookeeper",
	"TestZooKeeperEnsemble": "zookeeper ×3", "TestPostgresRow": "postgres, row",
	"TestPostgresAdvisory": "postgres, advisory", "TestPostgresLease": "postgres, lease",
}

// table renders what was found of cells, which come in this order.
func table(cells []string, all []Result) string {
	var b strings.Builder
	b.WriteString("| server | version | driver | rules | kept | excluded | broken | on |\n" +
		"|---|---|---|---|---|---|---|---|\n")
	for _, cell := range cells {
		ran := false
		for _, r := range all {
			if r.Cell != cell {
				continue
			}
			ran = true
			if r.Test == tooOld && r.Refused != "" {
				fmt.Fprintf(&b, "| %s | %s | refused: %s | | | | | %s |\n", cell, r.Version, r.Refused, r.Date)
				continue
			}
			broken := "0"
			if len(r.Broken) > 0 {
				broken = "**" + strings.Join(r.Broken, ", ") + "**"
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %d | %d | %d | %s | %s |\n",
				cell, r.Version, names[r.Test], r.Rules, r.Kept, r.Excluded, broken, r.Date)
		}
		if !ran {
			fmt.Fprintf(&b, "| %s | | not run | | | | | |\n", cell)
		}
	}
	return b.String()
}
