package stores

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// slots is how many hash slots every Redis Cluster has.
const slots = 16384

// ClusterOptions describes a Redis Cluster.
type ClusterOptions struct {
	Masters  int      // default 3
	Replicas int      // of each master; default 0
	Config   []string // lines of redis.conf for every node
}

// Cluster is a Redis Cluster. A master that is gone is replaced by a replica of its within two seconds.
type Cluster struct {
	*Group
	masters int
}

// StartCluster starts the nodes, joins them and returns when every one of them says that the
// cluster is ok. That takes two seconds, because a Redis master waits so long before it first
// answers for its slots.
func StartCluster(ctx context.Context, l Launcher, o ClusterOptions) (*Cluster, error) {
	if o.Masters == 0 {
		o.Masters = 3
	}
	n := o.Masters * (1 + o.Replicas)
	config := append([]string{
		"cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 1000",
		"cluster-announce-ip 127.0.0.1",
	}, o.Config...)
	g, err := startGroup(ctx, n, true, func(port int) (*Server, error) {
		return prepareRedis(ctx, l, port, RedisOptions{Config: config})
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Group: g, masters: o.Masters}
	if err := c.join(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// join gives the slots to the masters, makes the nodes known to each other and ties the replicas to their masters.
func (c *Cluster) join(ctx context.Context) error {
	// A node takes an epoch of its own only as long as it knows no other node.
	for i, node := range c.servers {
		commands := [][]string{{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)}}
		if i < c.masters {
			commands = append(commands, addSlots(i*slots/c.masters, (i+1)*slots/c.masters))
		}
		if err := node.command(ctx, commands...); err != nil {
			return err
		}
	}
	var meetings [][]string
	for _, peer := range c.servers {
		meetings = append(meetings, []string{
			"CLUSTER", "MEET", "127.0.0.1", portOf(peer.addr), strconv.Itoa(busPort(peer)),
		})
	}
	for _, node := range c.servers {
		if err := node.command(ctx, meetings...); err != nil {
			return err
		}
	}
	if err := each(ctx, c.servers, c.acquainted); err != nil {
		return err
	}
	for i, replica := range c.servers[c.masters:] {
		if err := c.replicate(ctx, replica, c.servers[i%c.masters]); err != nil {
			return err
		}
	}
	return c.AwaitOK(ctx)
}

// command sends commands of which only the errors matter.
func (s *Server) command(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := s.ask(ctx, "", args...); err != nil {
			return fmt.Errorf("redis %s: %s %s: %w", s.addr, args[0], args[1], err)
		}
	}
	return nil
}

func busPort(s *Server) int {
	port, _ := strconv.Atoi(portOf(s.addr)) // takePorts made it
	return port + busOffset
}

// addSlots is the command that takes the slots from first up to, not including, end.
func addSlots(first, end int) []string {
	command := []string{"CLUSTER", "ADDSLOTS"}
	for slot := first; slot < end; slot++ {
		command = append(command, strconv.Itoa(slot))
	}
	return command
}

// replicate makes one node the replica of another, as soon as it knows that the other is a master.
func (c *Cluster) replicate(ctx context.Context, replica, master *Server) error {
	id, err := master.ask(ctx, "", "CLUSTER", "MYID")
	if err != nil {
		return err
	}
	return replica.until(ctx, func(ctx context.Context) error {
		_, err := replica.ask(ctx, "", "CLUSTER", "REPLICATE", id)
		return err
	})
}

// acquainted returns nil if the node knows every node by its final name.
func (c *Cluster) acquainted(ctx context.Context, node *Server) error {
	list, err := node.ask(ctx, "", "CLUSTER", "NODES")
	if err != nil {
		return err
	}
	if n := strings.Count(list, "\n"); n != len(c.servers) || strings.Contains(list, "handshake") {
		return fmt.Errorf("it knows %d of %d nodes", n, len(c.servers))
	}
	return nil
}

// AwaitOK waits until every node says that the cluster is ok, and every replica follows its master. All nodes must be
// running.
func (c *Cluster) AwaitOK(ctx context.Context) error {
	return each(ctx, c.servers, func(ctx context.Context, node *Server) error {
		info, err := node.ask(ctx, "", "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		if state := field(info, "cluster_state"); state != "ok" ||
			field(info, "cluster_slots_ok") != strconv.Itoa(slots) {
			return fmt.Errorf("the cluster's state is %q", state)
		}
		role, err := node.ask(ctx, "", "INFO", "replication")
		if err == nil && field(role, "role") == "slave" {
			return following(ctx, node)
		}
		return err
	})
}

// Master returns the node that serves a slot now, as any running node sees it.
func (c *Cluster) Master(ctx context.Context, slot int) (*Server, error) {
	var errs []error
	for _, node := range c.servers {
		addr, err := node.slotOwner(ctx, slot)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if owner := c.At(addr); owner != nil {
			return owner, nil
		}
		errs = append(errs, fmt.Errorf("redis %s names %q, which is no node of this cluster", node.addr, addr))
	}
	return nil, errors.Join(errs...)
}

// slotOwner asks a node who serves a slot.
func (s *Server) slotOwner(ctx context.Context, slot int) (string, error) {
	c, err := dialRESP(ctx, s.addr, "", nil)
	if err != nil {
		return "", err
	}
	defer c.close()
	v, err := c.do("CLUSTER", "SLOTS")
	if err != nil {
		return "", err
	}
	ranges, _ := v.([]any)
	for _, r := range ranges {
		parts, _ := r.([]any) // first slot, last slot, [host, port, id], replicas…
		if len(parts) < 3 {
			continue
		}
		first, _ := parts[0].(int64)
		last, _ := parts[1].(int64)
		owner, _ := parts[2].([]any)
		if int64(slot) >= first && int64(slot) <= last && len(owner) >= 2 {
			return fmt.Sprintf("%v:%v", owner[0], owner[1]), nil
		}
	}
	return "", fmt.Errorf("nobody serves slot %d", slot)
}

// URL is the address as this project's driver takes it.
func (c *Cluster) URL() string { return "redis+cluster://" + strings.Join(c.Addrs(), ",") }

// String names it for logs.
func (c *Cluster) String() string {
	first := c.servers[0]
	return fmt.Sprintf("%s %s %s cluster of %d masters and %d replicas %v", first.store, first.version, first.kind,
		c.masters, len(c.servers)-c.masters, c.Addrs())
}
