package stores

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// masterName is what the sentinels call the master.
const masterName = "main"

// sentinels is how many there are; the quorum is their majority.
const sentinels = 3

// SentinelOptions describes a Redis master with replicas under three sentinels.
type SentinelOptions struct {
	Replicas int      // default 1
	Config   []string // lines of redis.conf for the master and the replicas
}

// Sentinel is a Redis master with replicas, and the sentinels that watch it: about a second after the master is gone, a
// replica has taken its place.
type Sentinel struct {
	data  *Group
	watch *Group
}

// StartSentinel starts master, replicas and sentinels and returns when every sentinel knows all the others.
func StartSentinel(ctx context.Context, l Launcher, o SentinelOptions) (*Sentinel, error) {
	replicas := max(o.Replicas, 1)
	s := &Sentinel{data: &Group{}, watch: &Group{}}
	var err error
	s.data, err = startGroup(ctx, replicas+1, false, dataNode(ctx, l, o.Config))
	if err != nil {
		return nil, err
	}
	if err := each(ctx, s.data.servers[1:], following); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	master := s.data.servers[0].addr
	watch, err := startGroup(ctx, sentinels, false, func(port int) (*Server, error) {
		return prepareSentinel(ctx, l, port, master)
	})
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.watch = watch
	if err := s.awaitAcquainted(ctx, replicas); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// dataNode returns the maker of master and replicas: the first is the master.
func dataNode(ctx context.Context, l Launcher, config []string) func(port int) (*Server, error) {
	master := ""
	return func(port int) (*Server, error) {
		own := config
		if master == "" {
			master = strconv.Itoa(port)
		} else {
			own = append([]string{"replicaof 127.0.0.1 " + master}, config...)
		}
		return prepareRedis(ctx, l, port, RedisOptions{Config: own})
	}
}

// prepareSentinel writes the configuration of one sentinel.
func prepareSentinel(ctx context.Context, l Launcher, port int, master string) (*Server, error) {
	return newServer("redis", l, port, func(s *Server) error {
		s.url = "redis+sentinel://" + s.addr + "/" + masterName
		return s.prepareRESP(ctx, l, "redis-sentinel", []string{
			"bind 127.0.0.1", "protected-mode no", "daemonize no",
			"port " + strconv.Itoa(port), "dir " + s.dir,
			fmt.Sprintf("sentinel monitor %s 127.0.0.1 %s %d", masterName, portOf(master), sentinels/2+1),
			"sentinel down-after-milliseconds " + masterName + " 500",
			"sentinel failover-timeout " + masterName + " 2000",
		}, "", "--sentinel")
	})
}

// following returns nil if a replica's link to its master is up.
func following(ctx context.Context, s *Server) error {
	info, err := s.ask(ctx, "", "INFO", "replication")
	if err != nil {
		return err
	}
	if status := field(info, "master_link_status"); status != "up" {
		return fmt.Errorf("link to the master is %q", status)
	}
	return nil
}

// awaitAcquainted waits until every sentinel knows the replicas and the other sentinels.
func (s *Sentinel) awaitAcquainted(ctx context.Context, replicas int) error {
	for _, w := range s.watch.servers {
		// By default they greet each other every 2 s and look at the master every 10 s. Servers before 7.0 refuse to
		// be hurried; they only take longer.
		_, _ = w.ask(ctx, "", "SENTINEL", "DEBUG", "INFO-PERIOD", "200", "PUBLISH-PERIOD", "100", "PING-PERIOD", "300",
			"ASK-PERIOD", "100")
	}
	return each(ctx, s.watch.servers, func(ctx context.Context, w *Server) error {
		state, err := w.masterState(ctx)
		if err != nil {
			return err
		}
		if state["num-slaves"] != strconv.Itoa(replicas) ||
			state["num-other-sentinels"] != strconv.Itoa(sentinels-1) || state["flags"] != "master" {
			return fmt.Errorf("it sees %s replicas, %s other sentinels and a master that is %q",
				state["num-slaves"], state["num-other-sentinels"], state["flags"])
		}
		return nil
	})
}

// masterState is what a sentinel says about the master.
func (s *Server) masterState(ctx context.Context) (map[string]string, error) {
	c, err := dialRESP(ctx, s.addr, "", nil)
	if err != nil {
		return nil, err
	}
	defer c.close()
	v, err := c.do("SENTINEL", "MASTER", masterName)
	if err != nil {
		return nil, err
	}
	list, _ := v.([]any)
	state := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		state[fmt.Sprint(list[i])] = fmt.Sprint(list[i+1])
	}
	return state, nil
}

// MasterName is what the sentinels call the master.
func (s *Sentinel) MasterName() string { return masterName }

// Addrs lists the sentinels' addresses.
func (s *Sentinel) Addrs() []string { return s.watch.Addrs() }

// URL is the address as this project's driver takes it.
func (s *Sentinel) URL() string {
	return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + masterName
}

// Nodes lists the first master and the replicas.
func (s *Sentinel) Nodes() []*Server { return s.data.Servers() }

// Sentinels lists the sentinels.
func (s *Sentinel) Sentinels() []*Server { return s.watch.Servers() }

// String names it for logs.
func (s *Sentinel) String() string {
	return fmt.Sprintf("%v with %d replicas and sentinels %v", s.data.servers[0], len(s.data.servers)-1, s.Addrs())
}

// Master is the server that the sentinels now call the master. It may be dead, and they may not have noticed yet.
func (s *Sentinel) Master(ctx context.Context) (*Server, error) {
	var errs []error
	for _, w := range s.watch.servers {
		state, err := w.masterState(ctx)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		addr := net.JoinHostPort(state["ip"], state["port"])
		if node := s.data.At(addr); node != nil {
			return node, nil
		}
		errs = append(errs, fmt.Errorf("sentinel %s names %s, which is no server of this set", w.addr, addr))
	}
	return nil, errors.Join(errs...)
}

// Epoch grows whenever the sentinels choose another master.
func (s *Sentinel) Epoch(ctx context.Context) (string, error) {
	var errs []error
	for _, w := range s.watch.servers {
		state, err := w.masterState(ctx)
		if err == nil {
			return state["config-epoch"], nil
		}
		errs = append(errs, err)
	}
	return "", errors.Join(errs...)
}

// AwaitMaster waits until a majority of the sentinels name another master than old and it says itself that it is one.
func (s *Sentinel) AwaitMaster(ctx context.Context, old *Server) (*Server, error) {
	var node *Server
	err := await(ctx, nil, func(ctx context.Context) error {
		votes := map[string]int{}
		for _, w := range s.watch.servers {
			if state, err := w.masterState(ctx); err == nil {
				votes[net.JoinHostPort(state["ip"], state["port"])]++
			}
		}
		for addr, n := range votes {
			node = s.data.At(addr)
			if n <= sentinels/2 || node == nil || node == old {
				continue
			}
			info, err := node.ask(ctx, "", "INFO", "replication")
			if err == nil && field(info, "role") == "master" {
				return nil
			}
		}
		return fmt.Errorf("no new master: the sentinels name %v", votes)
	})
	return node, err
}

// Close closes all of them.
func (s *Sentinel) Close() error { return errors.Join(s.watch.Close(), s.data.Close()) }
