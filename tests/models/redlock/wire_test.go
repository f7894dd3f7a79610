package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	driver "github.com/fencelock/fencelock/redlock"
)

// The keys of a node, as the driver's state.lua has them.
const (
	stateKey = "fl\x00rl"
	tombKey  = "fl\x00rl:x"
)

// cluster is three servers. They have the machine's time, and the drivers a virtual one, in which a
// driver is known to wait when it does.
type cluster struct {
	nodes   [nodes]*goredis.Client
	library string
	work    chan func()
	done    chan struct{}
}

// onServers runs f in virtual time.
func onServers(t *testing.T, f func(*testing.T, *cluster)) {
	c := &cluster{work: make(chan func()), done: make(chan struct{})}
	defer close(c.work)
	go func() {
		for f := range c.work {
			f()
			c.done <- struct{}{}
		}
	}()
	var clients []goredis.UniversalClient
	for n, addr := range servers.Redises(t, nodes, servers.RedisOptions{}).Addrs() {
		c.nodes[n] = goredis.NewClient(&goredis.Options{Addr: addr})
		t.Cleanup(func() { _ = c.nodes[n].Close() })
		clients = append(clients, c.nodes[n])
	}
	d, err := driver.New(clients, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := claim("first", strings.Repeat("0", 32), 0)
	d.Ask(t.Context(), []*backend.Claim{first}) // loads the library
	_ = d.Close()
	libs, err := c.nodes[0].FunctionList(t.Context(), goredis.FunctionListQuery{}).Result()
	if err != nil || len(libs) != 1 {
		t.Fatalf("got libraries %v, %v; %v", libs, err, first.Err)
	}
	c.library = libs[0].Name
	synctest.Test(t, func(t *testing.T) { f(t, c) })
}

func claim(name, nonce string, floor int64) *backend.Claim {
	return &backend.Claim{Request: &backend.Request{
		Name: name, Nonce: nonce, Owner: "o", TTL: time.Minute, Floor: floor, Lost: func(error) {},
	}}
}

// outside does f in the machine's time.
func (c *cluster) outside(f func(context.Context) error) (err error) {
	c.work <- func() { err = f(context.Background()) }
	<-c.done
	return err
}

// settle ends a node's quarantine. It returns the node's clock at its end, which is its least number.
func (c *cluster) settle(ctx context.Context, n int) (base int64, err error) {
	look := func() error {
		return c.nodes[n].Do(ctx, "fcall", c.library, 2, stateKey, stateKey,
			"0 60000 15000000 200 "+backend.DefaultPrefix, "s").Err()
	}
	err = errors.Join(look(), c.nodes[n].HSet(ctx, stateKey, "until", 1).Err(), look())
	if err == nil {
		base, err = c.nodes[n].HGet(ctx, stateKey, "base").Int64()
	}
	return base, err
}

// dump is a key as it was.
type dump struct {
	key, value string
	left       time.Duration
}

func (c *cluster) save(ctx context.Context, n int) (keys []dump, err error) {
	names, err := c.nodes[n].Keys(ctx, "*").Result()
	for _, k := range names {
		value, bad := c.nodes[n].Dump(ctx, k).Result()
		left, worse := c.nodes[n].PTTL(ctx, k).Result()
		keys, err = append(keys, dump{k, value, max(left, 0)}), errors.Join(err, bad, worse)
	}
	return keys, err
}

func (c *cluster) restore(ctx context.Context, n int, keys []dump) error {
	err := c.nodes[n].FlushAll(ctx).Err()
	for _, k := range keys {
		err = errors.Join(err, c.nodes[n].Restore(ctx, k.key, k.left, k.value).Err())
	}
	return err
}

// sight is what a node has of a lock.
type sight struct {
	holder                int // attempt, or -1
	number, counter, base int64
	quar                  bool // it knows that it is in quarantine
	tombs                 [attempts]bool
}

func (c *cluster) look(ctx context.Context, n int, lock, counter string, ids map[string]int) (w sight, err error) {
	p := c.nodes[n].Pipeline()
	value, fields := p.Get(ctx, lock), p.HMGet(ctx, stateKey, "until", "base", counter)
	tombs := map[int]*goredis.IntCmd{}
	for id, a := range ids {
		tombs[a] = p.Exists(ctx, tombKey+id)
	}
	if _, err = p.Exec(ctx); err != nil && !errors.Is(err, goredis.Nil) {
		return w, err
	}
	w.holder = -1
	if parts := strings.Split(value.Val(), ":"); len(parts) == 3 {
		a, known := ids[parts[0]]
		if !known {
			return w, fmt.Errorf("node %d has a lock of %q", n, parts[0])
		}
		w.holder = a
		w.number, _ = strconv.ParseInt(parts[1], 10, 64)
	}
	for a, there := range tombs {
		w.tombs[a] = there.Val() > 0
	}
	w.quar = fields.Val()[0] != nil
	for i, to := range []*int64{&w.base, &w.counter} {
		text, _ := fields.Val()[i+1].(string)
		*to, _ = strconv.ParseInt(text, 10, 64)
	}
	return w, nil
}

// wire is what a driver has for the client of a node: its calls wait for the run.
type wire struct {
	goredis.UniversalClient
	tr           *trace
	driver, node int
}

// message is a call to a node, or a copy of one.
type message struct {
	*wire
	args  []any
	ops   []op
	reply chan answer
	lone  bool // nobody waits for the reply
}

// op is one operation of a call.
type op struct {
	kind string
	id   string // of the ballot; a look at the gates is of none
	args []string
	at   int // where the arguments are in the call
	ask  int // of which Ask of its client a request for a vote is
}

type answer struct {
	replies []any
	err     error
}

var errCut = errors.New("the connection is broken")

// arguments is how many of them an operation has, as the driver's Lua has it.
var arguments = map[string]int{"v": 4, "w": 4, "r": 3, "e": 2, "a": 5}

// Do implements goredis.UniversalClient: nothing else of it is used.
func (w *wire) Do(ctx context.Context, args ...any) *goredis.Cmd {
	m := &message{wire: w, reply: make(chan answer, 1)}
	var texts []string
	for _, a := range args {
		if s, ok := a.(*string); ok {
			a = *s
		}
		m.args, texts = append(m.args, a), append(texts, fmt.Sprint(a))
	}
	keys := m.args[2].(int)
	for at := 4 + keys; at < len(texts); {
		end := at + 1 + arguments[texts[at]]
		o := op{kind: texts[at], args: texts[at+1 : end], at: at + 1}
		if len(o.args) > 0 {
			o.id = o.args[0]
		}
		m.ops = append(m.ops, o)
		at = end
	}
	cmd := goredis.NewCmd(ctx, args...)
	if m.ops[0].kind == "s" { // a driver asks each server once what it is
		cmd.SetVal([]any{[]any{int64(1), fmt.Sprint("run ", w.node), "", "", ""}})
		return cmd
	}
	if !w.tr.comes(m) {
		cmd.SetErr(errCut)
		return cmd
	}
	select {
	case a := <-m.reply:
		cmd.SetVal(a.replies)
		cmd.SetErr(a.err)
	case <-ctx.Done():
		w.tr.mu.Lock()
		m.lone = true
		w.tr.mu.Unlock()
		cmd.SetErr(ctx.Err())
	}
	return cmd
}

// order sorts messages that came together.
func order(a, b *message) int {
	return slices.Compare([]int{a.driver, a.node}, []int{b.driver, b.node})
}
