package doctor

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

func redlockKinds() []Kind {
	return []Kind{
		{
			"redlock-few", Broken, "nodes in the URL",
			"A majority of fewer than three nodes survives no failure. The driver refuses the URL.",
			"three or five servers that know nothing of each other, each on a machine of its own",
		},
		{
			"redlock-even", Broken, "nodes in the URL",
			"An even number of nodes survives no more failures than one less, and splits votes more often. The driver refuses the URL.",
			"leave one node out, or add one, on all clients at once: two different majorities exclude nobody",
		},
		{
			"redlock-same-server", Broken, "run_id",
			"Two addresses of the URL lead to one server, which so has two votes: its failure costs two, and a majority may be fewer servers than it seems.",
			"give each server once",
		},
		{
			"redlock-replica", Broken, "role",
			"A node is a replica. Nodes must be independent: it refuses votes, and what it has of another node's data are no votes of its own.",
			"redis-cli -h {host} -p {port} REPLICAOF NO ONE, and remove replicaof from redis.conf; its votes count after a quarantine",
		},
		{
			"redlock-replicated", Note, "connected_slaves",
			"A node has a replica. If that is promoted in the node's place it is put into quarantine, so nothing breaks; it only costs what replication costs.",
			"no replicas for nodes of Redlock",
		},
		{
			"redlock-same-host", Risk, "addresses of the nodes",
			"Nodes share a host: one failure, one restart or one jump of a clock takes several votes.",
			"each node on a machine of its own, better in a zone of its own",
		},
		{
			"redlock-down", Risk, "a node",
			"The node does not answer. A majority does, so locking works; with one more failure it may not.",
			"start {where}",
		},
		{
			"redlock-clocks", Risk, "wall clocks of the nodes, against each other",
			"Expiries and tokens are by the nodes' own clocks. Nodes whose clocks differ by a second or more are not kept by NTP: a jump forward forgets locks that are held, and after a loss of data tokens can go back by as much.",
			"chronyc tracking, or timedatectl, on every node; let clocks be slewed, not stepped",
		},
		{
			"redlock-quarantine", Risk, "quarantine",
			"The node was restarted, flushed or restored and does not vote yet, because it may have forgotten votes. Until it does, fewer failures can be survived; if a majority is in quarantine, nothing can be locked.",
			"wait; restart nodes one after the other, a quarantine apart",
		},
		{
			"redlock-unsettled", Note, "quarantine",
			"The node has never voted, or was restarted or flushed since. It goes into quarantine at the first lock, and votes after that.",
			"on a new cluster wait once, or open it with fresh=1 if it never had locks",
		},
	}
}

// fewNodes reports whether the URL has a number of Redlock nodes that the driver refuses. That is a finding, not an
// unreadable URL.
func (x *exam) fewNodes() bool {
	if !strings.HasPrefix(x.u.Scheme, "redlock") {
		return false
	}
	n := len(backend.Hosts(x.u, "6379"))
	return n < 3 || n%2 == 0
}

// redlock examines each node by itself, and then what they have in common.
func (x *exam) redlock(ctx context.Context) error {
	s, err := x.redisSettings()
	if err != nil {
		return err
	}
	switch n := len(s.hosts); {
	case n < 3:
		x.add("redlock-few", "", strconv.Itoa(n))
	case n%2 == 0:
		x.add("redlock-even", "", strconv.Itoa(n))
	}
	var nodes []*redisServer
	var down error
	for _, host := range s.hosts {
		c := goredis.NewClient(s.options(host))
		defer c.Close()
		n, err := x.redisNode(ctx, c, host)
		if err != nil {
			down = err
			if backend.Final(err) {
				return err
			}
			x.add("redlock-down", host, "no answer")
			continue
		}
		nodes = append(nodes, n)
	}
	if len(nodes) <= len(s.hosts)/2 {
		return fmt.Errorf("%d of %d nodes answer: %w", len(nodes), len(s.hosts), down)
	}
	for _, n := range nodes {
		if err := x.redlockNode(ctx, n); err != nil {
			return err
		}
	}
	x.redlockTogether(ctx, nodes)
	return nil
}

// redlockNode checks what a node must have besides what every server must.
func (x *exam) redlockNode(ctx context.Context, n *redisServer) error {
	if n.info["role"] == "slave" {
		x.add("redlock-replica", n.where, "replica of "+net.JoinHostPort(n.info["master_host"], n.info["master_port"]))
	}
	if k := n.number("connected_slaves"); k > 0 {
		x.add("redlock-replicated", n.where, fmt.Sprintf("%.0f connected", k))
	}
	channels := [][]string{{"PUBLISH", "fl\x00rl:p0", "m"}, {"SUBSCRIBE", "fl\x00rl:p0"}}
	x.askRights(ctx, n, redlockCommands(x.prefix+redisProbe), channels, [][]string{{"SCAN", "0"}})
	state, err := n.HMGet(ctx, "fl\x00rl", "run", "until").Result()
	if err != nil {
		if noPermission(err) {
			return nil // one of the rights
		}
		return redisMeaning(ctx, err)
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
	if apart := last.sample.offset - first.sample.offset; apart > skewMost+(first.sample.took+last.sample.took)/2 {
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
