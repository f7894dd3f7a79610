package zookeeper

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// What is known of how long a waiter has been silent survives however many names are looked at, and names that nobody
// looks at are forgotten.
func TestSightsOfManyNames(t *testing.T) {
	t.Parallel()
	const n = 3 * maxSights
	s := &session{st: &store{sights: map[string]sight{}}}
	l := readLine([]string{"wait-" + strings.Repeat("5", nonceLen) + "-0000000001"}) // it may take the lock
	look := func(name string) {
		t.Helper()
		if err := s.saw(t.Context(), name, l, "", silentHead); err != nil {
			t.Fatal(err)
		}
	}
	first := map[string]time.Time{}
	for round := range 4 {
		for i := range n {
			name := fmt.Sprint("/", i)
			look(name)
			since := s.st.sights[name].since
			if round == 0 {
				first[name] = since
			} else if !since.Equal(first[name]) {
				t.Fatalf("round %d: %s is seen for %v less", round, name, since.Sub(first[name]))
			}
		}
	}
	for name, one := range s.st.sights {
		one.at = one.at.Add(-2 * sightFor)
		s.st.sights[name] = one
	}
	for i := range 2 * n {
		look(fmt.Sprint("/new-", i))
	}
	for i := range n {
		if name := fmt.Sprint("/", i); !s.st.sights[name].at.IsZero() {
			t.Fatalf("%s is remembered, %v after the last look", name, 2*sightFor)
		}
	}
}
