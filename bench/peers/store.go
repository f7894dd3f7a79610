package peers

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/servers/stores"
)

// store is the servers of an experiment, started for it.
type store struct {
	name    string
	addrs   []string
	servers []*stores.Server
	close   func() error
	count   func(ctx context.Context, addr string) (int64, error) // of requests; nil: it does not tell
	calling func(ctx context.Context, addr string) (int64, error) // of requests, a long one too; nil: as count
	used    int
}

// startStore starts one on this machine. The error matches stores.ErrMissing if its program is not there.
func startStore(ctx context.Context, name string) (*store, error) {
	s := &store{name: name}
	group := func(g *stores.Group, err error) error {
		if err != nil {
			return err
		}
		s.servers, s.addrs, s.close = g.Servers(), g.Addrs(), g.Close
		return nil
	}
	one := func(one *stores.Server, err error) error {
		if err != nil {
			return err
		}
		s.addrs, s.close = []string{one.Addr()}, one.Close
		return nil
	}
	kind, nodes := name, 0 // "etcd-3" has three
	if base, n, ok := strings.Cut(name, "-"); ok && base != "postgres" {
		var err error
		if nodes, err = strconv.Atoi(n); err != nil {
			return nil, fmt.Errorf("no store %q", name)
		}
		kind = base
	}
	var err error
	switch kind {
	case "redis":
		s.count, s.calling = redisReads, redisCalls
		err = one(stores.StartRedis(ctx, stores.Local{}, stores.RedisOptions{}))
	case "redlock":
		s.count, s.calling = redisReads, redisCalls
		err = group(stores.StartRedises(ctx, stores.Local{}, cmp.Or(nodes, 5), stores.RedisOptions{}))
	case "etcd":
		s.count = etcdMessages
		e, failed := stores.StartEtcd(ctx, stores.Local{}, stores.EtcdOptions{Members: nodes})
		if err = failed; err == nil {
			err = group(e.Group, nil)
		}
	case "zookeeper":
		s.count = zooKeeperPackets
		z, failed := stores.StartZooKeeper(ctx, stores.Local{}, stores.ZooKeeperOptions{Servers: nodes, Config: []string{"maxSessionTimeout=60000", "maxClientCnxns=0"}})
		if err = failed; err == nil {
			err = group(z.Group, nil)
		}
	case "postgres", "postgres-async":
		config := []string{"max_connections=500"}
		if name == "postgres-async" {
			config = append(config, "synchronous_commit=off")
		}
		p, failed := stores.StartPostgres(ctx, stores.Local{}, stores.PostgresOptions{Config: config})
		if err = failed; err == nil {
			err = one(p.Server, nil)
		}
	default:
		err = fmt.Errorf("no store %q", name)
	}
	return s, err
}

// place returns one of its own for a library.
func (s *store) place() place {
	s.used++
	return place{Addrs: s.addrs, Prefix: fmt.Sprint("p", s.used)}
}

// requests returns what the servers have received; 0 where they do not tell. Of Redis it is how often they read from a
// connection: what is sent together counts once.
func (s *store) requests(ctx context.Context) int64 { return s.sum(ctx, s.count) }

// calls is requests of which a long one, that is read in many pieces, counts once too.
func (s *store) calls(ctx context.Context) int64 {
	if s.calling == nil {
		return s.requests(ctx)
	}
	return s.sum(ctx, s.calling)
}

func (s *store) sum(ctx context.Context, count func(context.Context, string) (int64, error)) int64 {
	var sum int64
	for _, addr := range s.addrs {
		if count == nil {
			return 0
		}
		n, err := count(ctx, addr)
		if err != nil {
			return 0
		}
		sum += n
	}
	return sum
}

// hang stops the last node, mend lets it go on and catch up.
func (s *store) hang() error { return s.servers[len(s.servers)-1].Pause() }

func (s *store) mend() error { return s.servers[len(s.servers)-1].Resume() }

func redisReads(ctx context.Context, addr string) (int64, error) {
	return redisStats(ctx, addr, "stats", regexp.MustCompile(`(?m)^total_reads_processed:(\d+)`))
}

// redisCalls counts the commands with which locks are held. A script calls none of them while it renews.
func redisCalls(ctx context.Context, addr string) (int64, error) {
	return redisStats(ctx, addr, "commandstats", regexp.MustCompile(`(?m)^cmdstat_(?:eval|evalsha|mget):calls=(\d+)`))
}

// redisStats adds the numbers of a section of INFO.
func redisStats(ctx context.Context, addr, section string, line *regexp.Regexp) (sum int64, err error) {
	c := goredis.NewClient(&goredis.Options{Addr: addr})
	defer c.Close()
	text, err := c.Info(ctx, section).Result()
	if err != nil {
		return 0, err
	}
	for _, m := range line.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func etcdMessages(ctx context.Context, addr string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	var sum float64
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "grpc_server_msg_received_total{") {
			_, v, _ := strings.Cut(lines.Text(), "} ")
			n, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return 0, err
			}
			sum += n
		}
	}
	return int64(sum), lines.Err()
}

func zooKeeperPackets(ctx context.Context, addr string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := io.WriteString(conn, "srvr"); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if n, ok := strings.CutPrefix(lines.Text(), "Received: "); ok {
			return strconv.ParseInt(n, 10, 64)
		}
	}
	return 0, errors.Join(errors.New("srvr does not tell what was received"), lines.Err())
}
