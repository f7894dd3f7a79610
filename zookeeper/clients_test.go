package zookeeper_test

import (
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/backend"
)

// Reports that are to be forgotten are deleted by who comes later; each is one node, however often it is written.
func TestReportsAreForgotten(t *testing.T) {
	t.Parallel()
	z := single(t)
	c, d := foreign(t, z.Addrs()...), driver(t, z.URL())
	reports := func() int {
		t.Helper()
		_, err := c.Sync("/")
		must(t, err)
		children, _, err := c.Children(root + "/clients")
		must(t, err)
		return len(children)
	}
	report := func(move, id string, keep time.Duration) {
		t.Helper()
		must(t, d.Report(t.Context(), backend.Client{Move: move, ID: id}, keep))
	}
	report("m/1", "gone", time.Millisecond)
	report("m/1", "a", time.Minute)
	for range 3 {
		report("m", "a", time.Minute)
	}
	await(t, 10*time.Second, "the first report is deleted by a look at another migration", func() bool {
		cs, err := d.Clients(t.Context(), "m")
		must(t, err)
		if len(cs) != 1 || cs[0].ID != "a" {
			t.Fatalf("Clients: got %+v, want one", cs)
		}
		return reports() == 2
	})
	report("m", "brief", time.Millisecond)
	await(t, 10*time.Second, "it is deleted when another client comes", func() bool {
		report("m", "comes", time.Minute)
		must(t, d.Withdraw(t.Context(), backend.Client{Move: "m", ID: "comes"}))
		return reports() == 2
	})
	must(t, d.Withdraw(t.Context(), backend.Client{Move: "m", ID: "a"}))
	must(t, d.Withdraw(t.Context(), backend.Client{Move: "m/1", ID: "a"}))
	if n := reports(); n != 0 {
		t.Errorf("reports: got %d, want 0", n)
	}
	want(t, "a report for no time", d.Report(t.Context(), backend.Client{Move: "m", ID: "a"}, 0), backend.ErrInvalid)
	_, err := c.Create(root+"/clients/note", nil, 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	_, err = d.Clients(t.Context(), "m")
	want(t, "Clients with a strange report", err, backend.ErrInvalid)
	report("m", "a", time.Minute) // it informs, so it does not fail because of others
}
