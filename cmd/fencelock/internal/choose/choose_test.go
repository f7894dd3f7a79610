package choose

import (
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/config"
)

// product calls do with every combination of answers, with rates on both sides of each threshold.
func product(do func(Answers)) {
	rates := []int{0, MostConsensus, MostConsensus + 1, MostRows, MostRows + 1, 1_000_000}
	for _, o := range Overlaps() {
		for bits := range 8 {
			for _, rate := range rates {
				do(Answers{Overlap: o, Tokens: bits&1 != 0, Node: bits&2 != 0, Postgres: bits&4 != 0, Rate: rate})
			}
		}
	}
}

// Whatever is answered, the file loads, gives every name the scenario, and keeps what was asked for.
func TestEveryChoiceHolds(t *testing.T) {
	scenarios := map[string]bool{}
	product(func(a Answers) {
		c := Choose(a)
		file, err := config.Load(strings.NewReader(c.YAML))
		if err != nil {
			t.Fatalf("%+v: %v\n%s", a, err, c.YAML)
		}
		r, err := file.RuleOf("any")
		if err != nil || r.Scenario.Name != c.Scenario.Name || r.Backend.Traits.Name != c.Backend {
			t.Errorf("%+v: the file gives %+v, %v, want %s on %s", a, r, err, c.Scenario.Name, c.Backend)
		}
		scenarios[c.Scenario.Name] = true
		tr := r.Backend.Traits
		if a.Node && !tr.SurvivesNode {
			t.Errorf("%+v: got %s, which does not survive a node", a, c.Backend)
		}
		if a.Overlap == Never {
			safe := tr.ClockFree && tr.SurvivesNode || tr.Transactional || a.Tokens || a.Postgres
			if !safe {
				t.Errorf("%+v: got %s on %s, where nothing stops a second writer", a, c.Scenario.Name, c.Backend)
			}
		}
		fast := a.Rate <= MostConsensus || c.Backend == "redis" || c.Backend == "redlock"
		if !fast && len(c.Cautions) == 0 {
			t.Errorf("%+v: got %s for %d locks a second without a caution", a, c.Backend, a.Rate)
		}
		if len(c.Why) == 0 || slices.Contains(c.Others, c.Backend) {
			t.Errorf("%+v: got %+v, want reasons and other backends than the chosen one", a, c)
		}
		for _, o := range c.Others {
			if len(c.Scenario.Need.Missing(backend.TraitsOf(o))) > 0 || a.Node && !backend.TraitsOf(o).SurvivesNode {
				t.Errorf("%+v: %s cannot do what %s does", a, o, c.Backend)
			}
		}
	})
	if len(scenarios) != len(config.Scenarios()) {
		t.Errorf("got only %v, want every scenario for some answers", scenarios)
	}
}

func TestChoices(t *testing.T) {
	tests := []struct {
		a        Answers
		scenario string
		backend  string
	}{
		{Answers{Overlap: Harmless}, "deduplication", "redis"},
		{Answers{Overlap: Harmless, Postgres: true, Rate: 10}, "deduplication", "postgres-lease"},
		{Answers{Overlap: Harmless, Node: true, Rate: 50_000}, "deduplication", "redlock"},
		{Answers{Overlap: Nuisance}, "general", "redis"},
		{Answers{Overlap: Nuisance, Node: true, Rate: 10}, "general", "etcd"},
		{Answers{Overlap: Never}, "consensus", "etcd"},
		{Answers{Overlap: Never, Tokens: true}, "inventory", "redis"},
		{Answers{Overlap: Never, Tokens: true, Node: true}, "consensus", "etcd"},
		{Answers{Overlap: Never, Tokens: true, Node: true, Rate: 50_000}, "inventory", "redlock"},
		{Answers{Overlap: Never, Postgres: true}, "transactional", "postgres-row"},
		{Answers{Overlap: Never, Postgres: true, Node: true}, "consensus", "etcd"},
		{Answers{Overlap: Never, Postgres: true, Rate: 50_000}, "inventory", "redis"},
	}
	for _, tt := range tests {
		c := Choose(tt.a)
		if c.Scenario.Name != tt.scenario || c.Backend != tt.backend {
			t.Errorf("%+v: got %s on %s, want %s on %s", tt.a, c.Scenario.Name, c.Backend, tt.scenario, tt.backend)
		}
	}
}
