package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/fencelock/fencelock/internal/core"
)

// mistake is one behaviour in which a driver or its store differs from a sound one.
type mistake struct {
	name    string     // of a flaw: the flaw's
	says    string     // what is done wrong, and where it was seen
	catches string     // the rules that must fail
	flaw    flaw       // made by the store,
	alter   alteration // or by the driver
}

// alteration returns d with one behaviour changed.
type alteration func(r *rig, d core.Caller, c Client) core.Caller

func (m *mistake) String() string {
	if m.name == "" {
		return string(m.flaw)
	}
	return m.name
}

// outcome is what became of the rules under one mistake.
type outcome map[string]Result

// verdict is the rules that failed, those that should have and did not, and how many others passed.
func (m *mistake) verdict(o outcome) (missed, others []string, share float64) {
	should := strings.Fields(m.catches)
	checked, passed := 0, 0
	for _, r := range Rules() {
		res, ok := o[r.Name]
		switch {
		case !ok || res.Excluded != "":
			if slices.Contains(should, r.Name) {
				missed = append(missed, r.Name)
			}
		case slices.Contains(should, r.Name):
			if res.Err == nil {
				missed = append(missed, r.Name)
			}
		default:
			checked++
			if res.Err == nil {
				passed++
			} else {
				others = append(others, r.Name)
			}
		}
	}
	if checked == 0 {
		return missed, others, 1
	}
	return missed, others, float64(passed) / float64(checked)
}

// inVirtualTime checks the rules that only names, or every one, that need no wire and no process.
func inVirtualTime(t *testing.T, m *mistake, only ...string) outcome {
	o := outcome{}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(m)
		for res := range Report(t.Context(), r.harness(), only...) {
			o[res.Rule] = res
		}
		close(r.store.stop)
	})
	return o
}

// row renders one line of the table: X caught as it must, x failed besides, · passed, blank not checked.
func row(m *mistake, o outcome) string {
	var b strings.Builder
	should := strings.Fields(m.catches)
	for i, r := range Rules() {
		if i > 0 && Rules()[i-1].Name[0] != r.Name[0] {
			b.WriteByte(' ')
		}
		res, ok := o[r.Name]
		switch {
		case !ok || res.Excluded != "":
			b.WriteByte(' ')
		case res.Err == nil:
			b.WriteString("·")
		case slices.Contains(should, r.Name):
			b.WriteByte('X')
		default:
			b.WriteByte('x')
		}
	}
	return b.String()
}

// head is the line above the rows: the letter of each group over its first rule.
func head() string {
	var b strings.Builder
	last := byte(0)
	for _, r := range Rules() {
		switch {
		case r.Name[0] == last:
			b.WriteByte(' ')
		case last != 0:
			b.WriteByte(' ')
			fallthrough
		default:
			b.WriteByte(r.Name[0])
			last = r.Name[0]
		}
	}
	return b.String()
}

// judge fails the test where the mistake was not caught, or where it is more than one mistake.
func judge(t *testing.T, m *mistake, o outcome) {
	t.Helper()
	missed, others, share := m.verdict(o)
	if len(missed) > 0 {
		t.Errorf("%s: %s: not caught by %v", m, m.says, missed)
	}
	if share < 0.9 {
		t.Errorf("%s: only %.0f %% of the other rules passed, failed: %v", m, 100*share, others)
		for _, name := range others {
			t.Log(o[name].Err)
		}
	}
}

// TestSoundDriversPass shows that what the mistakes are made in is sound without them.
func TestSoundDriversPass(t *testing.T) {
	for _, m := range []*mistake{
		{name: "sound"}, {name: "without tokens", alter: withoutTokens}, {name: "without news", alter: withoutNews},
	} {
		t.Run("virtual/"+m.name, func(t *testing.T) {
			for _, res := range inVirtualTime(t, m) {
				if res.Err != nil {
					t.Error(res.Err)
				}
			}
		})
	}
	t.Run("virtual/uncounted", func(t *testing.T) {
		alter := func(d core.Caller, _ Client) core.Caller { return uncounted(d) }
		for _, res := range inMemoryInVirtualTime(t, alter) {
			if res.Err != nil {
				t.Error(res.Err)
			}
		}
	})
	t.Run("wire", func(t *testing.T) {
		only := strings.Fields(sample)
		for _, m := range mistakesOverWire {
			only = append(only, strings.Fields(m.catches)...)
		}
		for _, res := range overWire(t, &mistake{name: "sound"}, only...) {
			if res.Err != nil {
				t.Error(res.Err)
			}
		}
	})
}

// TestMistakes shows that each is caught. -short leaves out all rules but those that must catch it.
func TestMistakes(t *testing.T) {
	lines := []string{fmt.Sprintf("%-30s %s", "", head())}
	for i := range mistakes {
		m := &mistakes[i]
		var only []string
		if testing.Short() {
			only = strings.Fields(m.catches)
		}
		o := inVirtualTime(t, m, only...)
		judge(t, m, o)
		lines = append(lines, line(m, o))
	}
	t.Log("mistakes × rules: X caught, x failed besides, · passed, blank not checked\n" + strings.Join(lines, "\n"))
}

// TestMistakesOverWire is TestMistakes for what needs a wire or a second process. -short leaves out the sample of
// other rules.
func TestMistakesOverWire(t *testing.T) {
	lines := make([]string, len(mistakesOverWire))
	t.Run("all", func(t *testing.T) {
		for i := range mistakesOverWire {
			m := &mistakesOverWire[i]
			t.Run(m.String(), func(t *testing.T) {
				t.Parallel()
				only := strings.Fields(m.catches)
				if !testing.Short() {
					only = append(only, strings.Fields(sample)...)
				}
				o := overWire(t, m, only...)
				judge(t, m, o)
				lines[i] = line(m, o)
			})
		}
	})
	t.Log("over the wire\n" + fmt.Sprintf("%-30s %s", "", head()) + "\n" + strings.Join(lines, "\n"))
}

func line(m *mistake, o outcome) string {
	return fmt.Sprintf("%-30s %s  %s", m, row(m, o), m.catches)
}

// planted returns the rules that find the bugs of these patches, which make mistakes plants.
func planted(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, path := range paths {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			if found, ok := strings.CutPrefix(line, "Found-by: "); ok {
				all = append(all, strings.Split(strings.TrimSpace(found), ", ")...)
			}
		}
	}
	return all
}

// TestEveryRuleHasAMistake: a rule that nothing is known to break may be one that cannot fail.
func TestEveryRuleHasAMistake(t *testing.T) {
	caught := map[string]bool{}
	for _, m := range slices.Concat(mistakes, mistakesOverWire) {
		for _, name := range strings.Fields(m.catches) {
			caught[name] = true
		}
	}
	for _, of := range []string{"memory", "file"} { // the toy has no shared holds, and memory no second process
		for _, name := range planted(t, "../tests/mistakes/"+of+"/*.patch") {
			caught[name] = true
		}
	}
	for _, r := range Rules() {
		if !caught[r.Name] {
			t.Errorf("%s (%s): no mistake that it catches", r.Name, r.What)
		}
	}
}
