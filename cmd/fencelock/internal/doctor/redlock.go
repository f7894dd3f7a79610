package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// fewNodes reports whether the URL has a number of Redlock nodes that the driver refuses. The doctor makes a
// finding of it.
func (x *exam) fewNodes() bool {
	if !strings.HasPrefix(x.u.Scheme, "redlock") {
		return false
	}
	n := len(backend.Hosts(x.u, "6379"))
	return n < 3 || n%2 == 0
}

// redlock examines each node by itself, and then compares them.
func (x *exam) redlock(ctx context.Context) error {
	o, err := x.redisOptions()
	if err != nil {
		return err
	}
	switch n := len(o.Addrs); {
	case n < 3:
		x.add("redlock-few", "", strconv.Itoa(n))
	case n%2 == 0:
		x.add("redlock-even", "", strconv.Itoa(n))
	}
	var nodes []*redisServer
	var down error
	for _, host := range o.Addrs {
		c := goredis.NewClient(redisAt(*o, host))
		defer c.Close()
		n, err := x.redisNode(ctx, c, host)
		if err != nil {
			if backend.Final(err) {
				return err
			}
			down = errors.Join(down, fmt.Errorf("%s: %w", host, err))
			x.add("redlock-down", host, "no answer")
			continue
		}
		nodes = append(nodes, n)
	}
	if len(nodes) <= len(o.Addrs)/2 {
		return fmt.Errorf("%d of %d nodes answer: %w", len(nodes), len(o.Addrs), down)
	}
	for _, n := range nodes {
		if err := x.redlockNode(ctx, n); err != nil {
			return err
		}
	}
	x.redlockTogether(ctx, nodes)
	return nil
}

// redlockNode makes the checks that apply to Redlock nodes alone.
func (x *exam) redlockNode(ctx context.Context, n *redisServer) error {
	if n.info["role"] == "slave" {
		x.add("redlock-replica", n.where, n.replicaOf())
	}
	if k := n.number("connected_slaves"); k > 0 {
		x.add("redlock-replicated", n.where, fmt.Sprintf("%.0f connected", k))
	}
	channels := [][]string{{"PUBLISH", "fl\x00rl:p0", "m"}, {"SUBSCRIBE", "fl\x00rl:p0"}}
	keys := redlockCommands(x.prefix+redisProbe, mayFunctions(ctx, n.Client))
	x.askRights(ctx, n, keys, channels, [][]string{{"SCAN", "0"}})
	state, err := n.HMGet(ctx, "fl\x00rl", "run", "until").Result()
	if err != nil {
		if noPermission(err) {
			return nil // one of the rights
		}
		return redisMeaning(err)
	}
	run, _ := state[0].(string)
	till, _ := state[1].(string)
	switch ms, _ := strconv.ParseInt(till, 10, 64); {
	case n.info["run_id"] == "": // INFO was not told
	case run != n.info["run_id"]:
		x.add("redlock-unsettled", n.where, "not settled")
	case ms > 0:
		if left := time.UnixMilli(ms).Sub(x.now().Add(n.sample.offset)); left > 0 {
			x.add("redlock-quarantine", n.where, left.Round(100*time.Millisecond).String()+" left")
		}
	}
	return nil
}

// redlockTogether checks that the nodes are several, and agree about the time.
func (x *exam) redlockTogether(ctx context.Context, nodes []*redisServer) {
	runs, hosts := map[string]string{}, map[string]string{}
	for _, n := range nodes {
		if run := n.info["run_id"]; run != "" {
			if other, dup := runs[run]; dup {
				x.add("redlock-same-server", n.where, "the server of "+other)
				continue
			}
			runs[run] = n.where
		}
		host := address(ctx, n.where)
		if other, dup := hosts[host]; dup {
			x.add("redlock-same-host", n.where, "the host of "+other)
			continue
		}
		hosts[host] = n.where
	}
	first, last := nodes[0], nodes[0]
	for _, n := range nodes {
		if n.sample.offset < first.sample.offset {
			first = n
		}
		if n.sample.offset > last.sample.offset {
			last = n
		}
	}
	apart := last.sample.offset - first.sample.offset
	if apart > skewMost+(first.sample.took+last.sample.took)/2 {
		x.add("redlock-clocks", last.where, fmt.Sprintf("%s of %s", ahead(apart), first.where))
	}
}

// address returns the address of a host:port's host, or the host if it has none.
func address(ctx context.Context, where string) string {
	host, _, err := net.SplitHostPort(where)
	if err != nil {
		return where
	}
	ctx, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	if all, err := net.DefaultResolver.LookupHost(ctx, host); err == nil && len(all) > 0 {
		return all[0]
	}
	return host
}
