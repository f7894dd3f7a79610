package zookeeper_test

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/faultproxy"
)

// Break frees a name that has a holder and nodes of another program: of all of them nothing is left.
func TestBreakBesideStrangeNodes(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	a, l := open(t, z.URL()), open(t, z.URL())
	acl := zk.WorldACL(zk.PermAll)
	for _, way := range []struct {
		name string
		hold locks
	}{
		{"x", a.Mutex("x").Lock},
		{"r", a.RWMutex("r").RLock},
	} {
		le := get(t, way.hold)
		for _, node := range []string{"/note", "/another"} {
			_, err := c.Create(at(way.name)+node, nil, 0, acl)
			must(t, err)
		}
		must(t, l.Break(t.Context(), way.name))
		lost(t, le, 5*time.Second, fencelock.Revoked)
		unlock(t, get(t, l.Mutex(way.name).TryLock))
	}
	awaitClean(t, c, 2*time.Second)
}

// A node of another program with nodes under it is not taken down, and Break says which one it is.
func TestBreakBesideAStrangeTree(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	l := open(t, z.URL())
	le := lock(t, l.Mutex("x"))
	acl := zk.WorldACL(zk.PermAll)
	for _, node := range []string{"/note", "/note/more"} {
		_, err := c.Create(at("x")+node, nil, 0, acl)
		must(t, err)
	}
	err := l.Break(t.Context(), "x")
	want(t, "Break", err, fencelock.ErrInvalid)
	if err == nil || !about(at("x")+"/note")([]byte(err.Error())) {
		t.Errorf("got %v, want it to name the node", err)
	}
	for _, node := range []string{"/note/more", "/note"} {
		must(t, c.Delete(at("x")+node, -1))
	}
	must(t, le.Err())
	unlock(t, le)
}

// A base that another program set so that tokens are more than they may be grants nothing.
func TestBaseAboveAllTokens(t *testing.T) {
	t.Parallel()
	const most = 1<<53 - 1
	z := single(t)
	c := foreign(t, z.Addrs()...)
	before := lock(t, open(t, z.URL()).Mutex("x"))
	unlock(t, before)
	_, stat, err := c.Get(last(t, c))
	must(t, err)
	now := 256 * stat.Mzxid // what the next token has more than the base, and a little
	for _, one := range []struct {
		base int64
		why  string
	}{
		{most - now - 256*5, "no token is left"},
		{most, "does not hold what makes tokens"},
		{1<<63 - 1, "does not hold what makes tokens"},
		{-100 * now, "does not hold what makes tokens"},
	} {
		_, err := c.Set(root+"/tokens", fmt.Appendf(nil, "%d %s", one.base, path.Base(last(t, c))), -1)
		must(t, err)
		d := driver(t, z.URL())
		g, err := d.Acquire(t.Context(), request("x"))
		if want(t, fmt.Sprint("with the base ", one.base), err, backend.ErrInvalid); err == nil {
			t.Errorf("got token %d after %d", g.Token, before.Token())
		} else if !strings.Contains(err.Error(), one.why) {
			t.Errorf("with the base %d: got %q, want %q", one.base, err, one.why)
		}
		_, err = open(t, z.URL()).Mutex("x").TryLock(t.Context())
		want(t, fmt.Sprint("TryLock with the base ", one.base), err, fencelock.ErrInvalid)
	}
}

// A holder's node that another program keeps from us is not renewed, and those of the same request are.
func TestNodeWithoutRights(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	var all []*core.Hold
	for _, name := range []string{"a", "b", "c"} {
		all = append(all, hold(t, d, request(name)))
	}
	children, _, err := c.Children(at("b"))
	must(t, err)
	_, err = c.SetACL(at("b")+"/"+children[0], zk.DigestACL(zk.PermAll, "another", "secret"), -1)
	must(t, err)
	for i, err := range d.Renew(t.Context(), all) {
		if (err != nil) != (i == 1) {
			t.Errorf("renewal of %s: %v", all[i].Name, err)
		}
	}
}

// Rights that were taken away when a claim was to be undone come back: nothing of it stays.
func TestUndoneOnceItMayBe(t *testing.T) {
	t.Parallel()
	z := single(t)
	c := foreign(t, z.Addrs()...)
	d := driver(t, z.URL())
	must(t, c.AddAuth("digest", []byte("another:secret")))
	for _, end := range []func(h *core.Hold) error{
		func(h *core.Hold) error { return d.Abandon(t.Context(), h.Request) },
		func(h *core.Hold) error {
			err := d.Release(t.Context(), h)
			_ = d.Abandon(t.Context(), h.Request) // as the engine does at its Deadline
			return err
		},
	} {
		h := hold(t, d, request("x"))
		_, err := c.SetACL(at("x"), zk.DigestACL(zk.PermAll, "another", "secret"), -1)
		must(t, err)
		want(t, "without rights", end(h), backend.ErrInvalid)
		_, err = c.SetACL(at("x"), zk.WorldACL(zk.PermAll), -1)
		must(t, err)
		awaitClean(t, c, 10*time.Second)
	}
}

// Of a renewal of many those that are gone, for an operator has deleted their nodes, are not found one after the other.
func TestManyGone(t *testing.T) {
	t.Parallel()
	const n = 300
	const way = 25 * time.Millisecond // in each direction
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	holds := make([]*core.Hold, n)
	var nodes []any
	for i := range holds {
		holds[i] = hold(t, d, request(fmt.Sprint("gone-", i)))
		if i > 0 {
			nodes = append(nodes, &zk.DeleteRequest{Path: holder(t, c, holds[i].Name), Version: -1})
		}
	}
	_, err := c.Multi(nodes...)
	must(t, err)
	p.Set(faultproxy.Mode{Delay: way})
	began := time.Now()
	errs := d.Renew(within(t, 20*time.Second), holds)
	took := time.Since(began)
	must(t, errs[0])
	for i, err := range errs[1:] {
		want(t, holds[i+1].Name, err, backend.ErrLost)
	}
	if most := n / 4 * 2 * way; took > most {
		t.Errorf("a renewal of %d took %v, want no more than %v", n, took, most)
	}
	p.Set(faultproxy.Mode{})
}

// Of many releases that go together, and find that an operator has deleted the nodes, each fails by itself: the others
// are not sent again and again with it.
func TestManyReleasesOfWhatIsGone(t *testing.T) {
	t.Parallel()
	const n = 200
	z := single(t)
	c := foreign(t, z.Addrs()...)
	p, url := proxied(t, z.Servers()[0])
	d := driver(t, url)
	holds, errs := make([]*core.Hold, n), make([]error, n)
	each := func(do func(i int)) {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { do(i) })
		}
		wg.Wait()
	}
	each(func(i int) {
		r := request(fmt.Sprint("gone-", i))
		var g backend.Grant
		g, errs[i] = d.Acquire(t.Context(), r)
		holds[i] = &core.Hold{Request: r, Grant: g}
	})
	must(t, errors.Join(errs...))
	var nodes []any
	for _, h := range holds {
		nodes = append(nodes, &zk.DeleteRequest{Path: at(h.Name) + "/held-" + h.Nonce, Version: -1})
	}
	_, err := c.Multi(nodes...)
	must(t, err)
	before := p.Counts().RequestBytes
	each(func(i int) { errs[i] = d.Release(t.Context(), holds[i]) })
	sent := p.Counts().RequestBytes - before
	for i, err := range errs { // on a busy machine it may have no answer in time
		if err == nil {
			t.Errorf("the release of %s, which is gone: got nil", holds[i].Name)
		}
	}
	if most := int64(n * 2 << 10); sent > most {
		t.Errorf("%d releases sent %d bytes, want no more than %d", n, sent, most)
	}
}
