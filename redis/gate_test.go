package redis_test

import (
	"context"
	"errors"
	"fmt"
	neturl "net/url"
	"os/exec"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/backend/gatetest"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/redis"
)

// The rules for gates on every topology; on a single server with the rights that the documentation
// names.
func TestGates(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		url  func(*testing.T) string
	}{
		{"single", func(t *testing.T) string {
			s := servers.Redis(t, servers.RedisOptions{Users: []string{"documented on >p " + rights}})
			return asUser(s, "documented", "p")
		}},
		{"sentinel", func(t *testing.T) string { return servers.RedisSentinel(t, servers.SentinelOptions{}).URL() }},
		{"cluster", func(t *testing.T) string {
			return servers.RedisCluster(t, servers.ClusterOptions{Masters: 3}).URL()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.name == "cluster" && testing.Short() {
				t.Skip("a gate of a cluster is a key in each of 16,384 slots")
			}
			url := tt.url(t)
			gatetest.Run(t, func(t *testing.T) backend.Driver {
				if tt.name == "cluster" { // all gates of a keyspace are in each slot
					return gater(t, url+"?prefix="+neturl.QueryEscape(t.Name()))
				}
				return gater(t, url)
			})
		})
	}
}

// gater is a driver of its own: one more client of the store. Its closing is the caller's.
func gater(t *testing.T, url string) caller {
	t.Helper()
	d, err := backend.Open(t.Context(), url, nil)
	must(t, err)
	return call(d.(*redis.Driver))
}

// closing is gater, closed with the test.
func closing(t *testing.T, url string) caller {
	d := gater(t, url)
	t.Cleanup(func() { must(t, d.Close()) })
	return d
}

const (
	nonceA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	nonceB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// single is the key of the gates off a cluster, with the default prefix.
var single = redis.OursOfFirst() + "gfencelock:"

func request(name, nonce string, phase backend.Phase) *backend.Request {
	r := &backend.Request{
		Name:  name,
		Nonce: nonce,
		Owner: "o",
		TTL:   20 * time.Second,
		Phase: phase,
		Lost:  func(error) {},
	}
	if phase != "" {
		r.Move = "m"
	}
	return r
}

func closedGate(match string) backend.Gate {
	return backend.Gate{
		Move:  "m",
		Scope: backend.Scope{{Match: match}},
		State: backend.GateBoth,
		Epoch: time.Now().UnixMicro(),
	}
}

// What is no gate under the gates' key grants nothing, and is named.
func TestForeignGate(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	for _, put := range []func(){
		func() { must(t, c.Set(t.Context(), single, "x", 0).Err()) },
		func() { must(t, c.HSet(t.Context(), single, "m", "x").Err()) },
		func() {
			ajar := `{"move":"m","state":"ajar","epoch":1,"scope":[{"match":"x"}]}`
			must(t, c.HSet(t.Context(), single, "m", ajar).Err())
		},
		func() {
			must(t, c.HSet(t.Context(), single, "m", `{"move":"m","state":"both","epoch":1,"scope":{}}`).Err())
		},
		func() {
			must(t, c.HSet(t.Context(), single, "m", `{"move":"m","state":"both","epoch":1,"scope":[{}]}`).Err())
		},
		func() {
			null := `{"move":"m","state":"both","epoch":null,"scope":[{"match":"x"}]}`
			must(t, c.HSet(t.Context(), single, "m", null).Err())
		},
	} {
		must(t, c.Del(t.Context(), single).Err())
		put()
		_, err := d.Acquire(t.Context(), request("x", nonceA, ""))
		_, err2 := d.Gates(t.Context())
		for _, err := range []error{err, err2} {
			want(t, "foreign data", err, backend.ErrInvalid)
			if err != nil && !strings.Contains(err.Error(), `}gfencelock:`) {
				t.Errorf("got %v, want the key named", err)
			}
		}
	}
	must(t, c.HSet(t.Context(), single, "m", "x").Err())
	want(t, "SetGate", d.SetGate(t.Context(), closedGate("*"), backend.Lower), backend.ErrInvalid)
	if v := c.Get(t.Context(), key("x")).Val(); v != "" {
		t.Errorf("the lock was granted: %q", v)
	}
}

// Two keyspaces of one server have gates and clients of their own, and neither is a lock of
// anybody's.
func TestGatesOfTwoKeyspaces(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	a, b, all := closing(t, s.URL()), closing(t, s.URL()+"?prefix=other:"), closing(t, s.URL()+"?prefix=")
	must(t, a.SetGate(t.Context(), closedGate("*"), 0))
	must(t, a.Report(t.Context(), backend.Client{ID: "c", Move: "m"}, time.Minute))
	if gates, err := b.Gates(t.Context()); err != nil || len(gates) != 0 {
		t.Errorf("the other's gates: %v, %v", gates, err)
	}
	if cs, err := b.Clients(t.Context(), "m"); err != nil || len(cs) != 0 {
		t.Errorf("the other's clients: %v, %v", cs, err)
	}
	r := request("x", nonceA, "")
	_, err := b.Acquire(t.Context(), r)
	must(t, err)
	for info, err := range all.List(t.Context(), "") {
		if err != nil || info.Name != "other:x" {
			t.Errorf("List: got %+v, %v, want other:x alone", info, err)
		}
	}
	must(t, b.Abandon(t.Context(), r))
	for _, d := range []caller{a, b, all} {
		for info, err := range d.List(t.Context(), "") {
			t.Errorf("List: got %+v, %v, want nothing", info, err)
		}
	}
}

// A holder in PhaseBoth is marked in the lock's value, and Inspect shows the owner without the
// mark. A stranger's lock holds up the drain, one of a value without any mark too, a name that
// stays and a claim do not.
func TestUndrainedKinds(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	c, d := foreign(t, s), closing(t, s.URL())
	r := request("move/both", nonceA, backend.PhaseBoth)
	_, err := d.Acquire(t.Context(), r)
	must(t, err)
	if v := c.Get(t.Context(), key("move/both")).Val(); !strings.HasSuffix(v, ":o\x00m") {
		t.Errorf("value %q, want the mark at its end", v)
	}
	info, err := d.Inspect(t.Context(), "move/both")
	if err != nil || info.Owner != "o" || info.Token == 0 {
		t.Errorf("got %+v, %v, want the plain owner", info, err)
	}
	g := closedGate("move/*")
	must(t, d.SetGate(t.Context(), g, 0))
	must(t, c.Set(t.Context(), key("move/claim"), ours+"\x00", time.Minute).Err())
	must(t, c.Set(t.Context(), key("stays"), ours, time.Minute).Err())
	must(t, c.RPush(t.Context(), key("move/list"), "x").Err())
	if left, err := d.Undrained(t.Context(), g); err != nil || len(left) != 0 {
		t.Errorf("got %v, %v, want nothing", left, err)
	}
	must(t, c.Set(t.Context(), key("move/stranger"), "x", time.Minute).Err())
	must(t, c.Set(t.Context(), key("move/old"), ours, time.Minute).Err())
	left, err := d.Undrained(t.Context(), g)
	must(t, err)
	if len(left) != 2 {
		t.Errorf("got %v, want two", left)
	}
	for _, i := range left {
		if want := map[string]string{"move/stranger": "", "move/old": "somebody"}[i.Name]; !i.Held ||
			i.Owner != want {
			t.Errorf("got %+v, want owner %q", i, want)
		}
	}
}

// A claim whose waiter is refused goes on to the next at once, not when it is over.
func TestRefusedClaimIsPassedOn(t *testing.T) {
	t.Parallel()
	s := servers.Redis(t, servers.RedisOptions{})
	a, b, c := closing(t, s.URL()), closing(t, s.URL()), closing(t, s.URL())
	first := request("x", strings.Repeat("c", 32), backend.PhaseBoth)
	g, err := a.Acquire(t.Context(), first)
	must(t, err)
	refused, granted := make(chan error, 1), make(chan time.Time, 1)
	wait := func(d caller, r *backend.Request, n int) chan error {
		r.Wait = true
		done := make(chan error, 1)
		go func() {
			_, err := d.Acquire(t.Context(), r)
			if r.Nonce == nonceB {
				granted <- time.Now()
			}
			done <- err
		}()
		await(t, 5*time.Second, fmt.Sprint(n, " in the queue"), func() bool {
			i, err := a.Inspect(t.Context(), "x")
			return err == nil && i.Waiters == n
		})
		return done
	}
	straggler := wait(b, request("x", nonceA, backend.PhaseFrom), 1)
	both := wait(c, request("x", nonceB, backend.PhaseBoth), 2)
	must(t, a.SetGate(t.Context(), closedGate("*"), 0))
	released := time.Now()
	must(t, a.Release(t.Context(), &core.Hold{Request: first, Grant: g}))
	go func() { refused <- <-straggler }()
	must(t, <-both)
	var gate *backend.GateError
	if err := <-refused; !errors.As(err, &gate) || gate.Move != "m" || gate.Phase != backend.PhaseFrom {
		t.Errorf("the straggler: got %v, want the gate's refusal", err)
	}
	if took := (<-granted).Sub(released); took > time.Second {
		t.Errorf("the next was granted after %v, want at once", took)
	}
	must(t, c.Abandon(t.Context(), request("x", nonceB, backend.PhaseBoth)))
}

// On a cluster a change that was interrupted leaves the gate torn, which the next change mends.
func TestTornGate(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 2})
	c, d := clusterClient(t, cl), closing(t, cl.URL())
	g := closedGate("*")
	g.State = backend.GateOpen
	must(t, d.SetGate(t.Context(), g, 0))
	where := redis.OursOf(key("x")) + "gfencelock:"
	must(t, c.Del(t.Context(), where).Err())
	gates, err := d.Gates(t.Context())
	if err != nil || len(gates) != 1 || !gates[0].Torn || gates[0].State != backend.GateBoth ||
		gates[0].Epoch != g.Epoch {
		t.Fatalf("got %+v, %v, want it torn", gates, err)
	}
	_, err = d.Acquire(t.Context(), request("x", nonceA, backend.PhaseTo))
	want(t, "a name of the slot without a gate", err, fencelock.ErrUnsupported)
	g.Epoch++
	want(t, "a change that expects it", d.SetGate(t.Context(), g, g.Epoch-1), backend.ErrGateMoved)
	g.Epoch++
	must(t, d.SetGate(t.Context(), g, backend.Lower))
	if gates, err = d.Gates(t.Context()); err != nil || len(gates) != 1 || gates[0].Torn ||
		gates[0].Epoch != g.Epoch {
		t.Errorf("got %+v, %v, want it whole", gates, err)
	}
}

// A search for holders that another server goes on with has missed keys, perhaps: it is an error.
// So is one while a slot is on its way.
func TestSearchOfChangingServers(t *testing.T) {
	t.Parallel()
	cl := servers.RedisCluster(t, servers.ClusterOptions{Masters: 2})
	c, d := clusterClient(t, cl), closing(t, cl.URL())
	g := closedGate("*")
	must(t, d.SetGate(t.Context(), g, 0))
	left, err := d.Undrained(t.Context(), g)
	if err != nil || len(left) != 0 {
		t.Fatalf("got %v, %v, want nothing", left, err)
	}
	slot := c.ClusterKeySlot(t.Context(), key("x")).Val()
	from, err := c.MasterForKey(t.Context(), key("x"))
	must(t, err)
	var other string
	must(t, c.ForEachMaster(t.Context(), func(ctx context.Context, m *goredis.Client) error {
		if m.Options().Addr != from.Options().Addr {
			other = m.ClusterMyID(ctx).Val()
		}
		return nil
	}))
	must(t, from.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "MIGRATING", other).Err())
	if _, err = d.Undrained(t.Context(), g); err == nil {
		t.Error("no error while a slot is on its way")
	}
	must(t, from.Do(t.Context(), "CLUSTER", "SETSLOT", slot, "STABLE").Err())
	_, err = d.Undrained(t.Context(), g)
	must(t, err)
}

// A server in a locale orders text by it: a, B, c. The gates of a place have one order everywhere.
func TestGatesOnAServerInALocale(t *testing.T) {
	dir := t.TempDir()
	out, err := exec.Command("localedef", "-i", "en_US", "-f", "UTF-8", dir+"/en_US.UTF-8").CombinedOutput()
	if err != nil {
		t.Skipf("no locale can be made (%v): %s", err, out)
	}
	t.Setenv("LOCPATH", dir)
	t.Setenv("LC_ALL", "en_US.UTF-8")
	s := servers.Redis(t, servers.RedisOptions{})
	d := closing(t, s.URL())
	for i, move := range []string{"a", "B", "c"} {
		g := closedGate(fmt.Sprint(i) + "*")
		g.Move = move
		must(t, d.SetGate(t.Context(), g, 0))
	}
	gates, err := closing(t, s.URL()).Gates(t.Context())
	must(t, err)
	if len(gates) != 3 {
		t.Errorf("got %+v, want three gates", gates)
	}
	_, err = open(t, s.URL()).Mutex("x").TryLock(t.Context())
	must(t, err)
}
