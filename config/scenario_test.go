package config_test

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// The decision matrix: which backends carry which scenario.
func TestScenarios(t *testing.T) {
	want := map[string]string{
		"deduplication": "memory file redis redlock etcd zookeeper postgres-row postgres-advisory postgres-lease",
		"general":       "memory file redis redlock etcd zookeeper postgres-row postgres-advisory postgres-lease",
		"inventory":     "memory file redis redlock etcd zookeeper postgres-row postgres-advisory postgres-lease",
		"consensus":     "etcd zookeeper",
		"transactional": "postgres-row postgres-advisory",
	}
	for _, s := range config.Scenarios() {
		var have []string
		for _, e := range s.Backends() {
			have = append(have, e.Traits.Name)
		}
		if got := strings.Join(have, " "); got != want[s.Name] {
			t.Errorf("%s: got %s, want %s", s.Name, got, want[s.Name])
		}
		if s.Reentrant != (s.Name == "general") {
			t.Errorf("%s: re-entrancy is %v", s.Name, s.Reentrant)
		}
		delete(want, s.Name)
	}
	if len(want) > 0 {
		t.Errorf("no scenario for %v", want)
	}
}

// Every pair of a scenario and a backend of the catalog either loads, or is refused with what is
// missing and who has it.
func TestEveryPair(t *testing.T) {
	for _, s := range config.Scenarios() {
		for _, e := range backend.Catalog() {
			url, _, _ := config.Kind(e.Traits.Name)
			c, err := load("backends: {b: {url: \"" + url + "\"}}\nlocks:\n  - {match: \"x/*\", " +
				"scenario: " + s.Name + ", backend: b}\n")
			missing := s.Need.Missing(e.Traits)
			if (err == nil) != (len(missing) == 0) {
				t.Errorf("%s on %s: got %v, missing is %v", s.Name, e.Traits.Name, err, missing)
				continue
			}
			if err != nil {
				for _, says := range append(missing, e.Traits.Name, s.Name, s.Backends()[0].Traits.Name) {
					if !strings.Contains(err.Error(), says) {
						t.Errorf("%s on %s: got %v, want it to say %s", s.Name, e.Traits.Name, err, says)
					}
				}
				continue
			}
			r := c.Rules()[0]
			if r.Backend.Traits != e.Traits {
				t.Errorf("%s: got traits %+v, want %+v", url, r.Backend.Traits, e.Traits)
			}
			checkWords(t, r)
		}
	}
}

// checkWords holds an explanation to the Traits that it is about.
func checkWords(t *testing.T, r *config.Rule) {
	t.Helper()
	e, tr := r.Explain(), r.Backend.Traits
	gets, not := strings.Join(e.Gets, "\n"), strings.Join(e.Not, "\n")
	tests := map[string]struct{ got, want bool }{
		"fairness":      {strings.Contains(gets, "first come, first served"), tr.FIFO},
		"clocks":        {strings.Contains(gets, "No clock of a server"), tr.ClockFree},
		"no clocks":     {strings.Contains(not, "clock jumps forward"), !tr.ClockFree},
		"a node":        {strings.Contains(gets, "One node"), tr.SurvivesNode},
		"no node":       {strings.Contains(not, "one server dies"), !tr.SurvivesNode},
		"transactional": {strings.Contains(gets, "the lock's own transaction"), tr.Transactional},
		"connections":   {strings.Contains(not, "costs a connection"), tr.LeasePerConn},
		"one process":   {strings.Contains(not, "this one process"), tr.Name == "memory"},
		"one machine":   {strings.Contains(not, "another machine"), tr.Name == "file"},
	}
	for what, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s on %s: words about %s: got %v, want %v", r.Scenario.Name, tr.Name, what, tt.got, tt.want)
		}
	}
	if len(e.Gets) == 0 || len(e.Not) == 0 {
		t.Errorf("%s on %s: got %+v, want what is promised and what is not", r.Scenario.Name, tr.Name, e)
	}
}

// What is promised of a migration in phase both names what must be up.
func TestExplainAMigration(t *testing.T) {
	for phase, both := range map[string]bool{"from": false, "both": true, "to": false} {
		c := mustLoad(t, strings.Replace(whole, "phase: both", "phase: "+phase, 1))
		r, err := c.RuleOf("inventory/1")
		if err != nil {
			t.Fatal(err)
		}
		e := r.Explain()
		if got := strings.Contains(strings.Join(e.Not, "\n"), `either "cache" or "safe" is down`); got != both {
			t.Errorf("phase %s: got %v", phase, e.Not)
		}
		if !strings.Contains(strings.Join(e.Gets, "\n"), "In phase "+phase) {
			t.Errorf("phase %s: got %v", phase, e.Gets)
		}
	}
}
