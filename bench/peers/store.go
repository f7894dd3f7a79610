package peers

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/bench/internal/measure"
	"github.com/fencelock/fencelock/bench/internal/raw"
	"github.com/fencelock/fencelock/internal/servers/stores"
)

// store is the servers of an experiment, started for it.
type store struct {
	name    string
	addrs   []string
	servers []*stores.Server
	close   func() error
	count   counting // of requests; nil: it does not tell
	calling counting // of requests, a long one too; nil: as count
	used    int
}

// startStore starts one on this machine. The error matches stores.ErrMissing if its program is not
// there.
func startStore(ctx context.Context, name string) (*store, error) {
	s := &store{name: name}
	kind, nodes := name, 0 // "etcd-3" has three
	if base, n, ok := strings.Cut(name, "-"); ok && base != "postgres" {
		var err error
		if nodes, err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("no store %q", name)
		}
		kind = base
	}
	var g *stores.Group
	var err error
	switch kind {
	case "redis", "redlock":
		s.count, s.calling = redisReads, redisCalls
		if kind == "redlock" {
			nodes = cmp.Or(nodes, 5)
		}
		g, err = stores.StartRedises(ctx, stores.Local{}, max(nodes, 1), stores.RedisOptions{})
	case "etcd":
		s.count = etcdMessages
		var e *stores.EtcdCluster
		if e, err = stores.StartEtcd(ctx, stores.Local{}, stores.EtcdOptions{Members: nodes}); err == nil {
			g = e.Group
		}
	case "zookeeper":
		s.count = raw.ZooKeeperPackets
		config := []string{"maxSessionTimeout=120000", "maxClientCnxns=0"}
		var z *stores.ZooKeeperEnsemble
		o := stores.ZooKeeperOptions{Servers: nodes, Config: config}
		if z, err = stores.StartZooKeeper(ctx, stores.Local{}, o); err == nil {
			g = z.Group
		}
	case "postgres", "postgres-async":
		config := []string{"max_connections=500"}
		if name == "postgres-async" {
			config = append(config, "synchronous_commit=off")
		}
		p, err := stores.StartPostgres(ctx, stores.Local{}, stores.PostgresOptions{Config: config})
		if err == nil {
			s.addrs, s.close = []string{p.Addr()}, p.Close
		}
		return s, err
	default:
		err = fmt.Errorf("no store %q", name)
	}
	if err == nil {
		s.servers, s.addrs, s.close = g.Servers(), g.Addrs(), g.Close
	}
	return s, err
}

// place returns one of its own for a library.
func (s *store) place() place {
	s.used++
	return place{Addrs: s.addrs, Prefix: fmt.Sprint("p", s.used)}
}

// requests counts the requests to the servers. Of Redis it counts reads from a connection, so a batch
// counts once.
func (s *store) requests(ctx context.Context) measure.Counter { return s.sum(ctx, s.count) }

// calls is requests of which a long one, that is read in many pieces, counts once too.
func (s *store) calls(ctx context.Context) measure.Counter {
	if s.calling == nil {
		return s.requests(ctx)
	}
	return s.sum(ctx, s.calling)
}

type counting func(ctx context.Context, addr string) (int64, error)

func (s *store) sum(ctx context.Context, count counting) measure.Counter {
	if count == nil {
		return nil
	}
	return func() (int64, bool) { return raw.Total(ctx, s.addrs, count) }
}

func redisReads(ctx context.Context, addr string) (int64, error) {
	return redisInfo(ctx, addr, "stats", reads)
}

// redisCalls counts the scripts with which locks are held, and the reads that look at them: none of the scripts does.
func redisCalls(ctx context.Context, addr string) (int64, error) {
	return redisInfo(ctx, addr, "commandstats", calls)
}

var (
	reads = regexp.MustCompile(`(?m)^total_reads_processed:(\d+)`)
	calls = regexp.MustCompile(`(?m)^cmdstat_(?:eval|evalsha|mget):calls=(\d+)`)
)

func redisInfo(ctx context.Context, addr, section string, number *regexp.Regexp) (int64, error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer c.Close()
	text, err := c.Info(ctx, section).Result()
	return raw.SumOf(text, number), err
}

func etcdMessages(ctx context.Context, addr string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return raw.EtcdMessages(ctx, http.DefaultClient, "http://"+addr+"/metrics")
}
