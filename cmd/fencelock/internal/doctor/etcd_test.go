package doctor

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/servers/stores"
)

// compacted is what a sound etcd has on its command line.
var compacted = []string{"--auto-compaction-mode=periodic", "--auto-compaction-retention=1h"}

func etcdClient(t *testing.T, e *servers.EtcdCluster) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: []string{"http://" + e.Addrs()[0]}, Logger: zap.NewNop(),
		DialTimeout: 5 * time.Second,
	})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestEtcd(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Members: 3, Args: compacted})
	use(t, e.URL())
	c := etcdClient(t, e)
	before, err := c.Get(t.Context(), "x")
	must(t, err)
	r := examine(t, e.URL())
	finds(t, r)
	sound(t, r)
	one := "etcd://" + e.Addrs()[0]
	if r := examine(t, one); len(r.Servers) != 3 {
		t.Errorf("by one host of the URL looked at %v, want all members", r.Servers)
	}
	has(t, examine(t, one, behind(time.Minute)), "clock-differs", "ahead")
	has(t, examine(t, one, tooOld("etcd")), "etcd-version", "3.")
	after, err := c.Get(t.Context(), "x")
	must(t, err)
	if before.Header.Revision != after.Header.Revision {
		t.Errorf("the revision is %d, before the examinations it was %d", after.Header.Revision, before.Header.Revision)
	}
	must(t, e.Servers()[2].Kill())
	finds(t, examine(t, e.URL()), "etcd-member-down")
	must(t, e.Servers()[1].Kill())
	await(t, "the last member misses the others", func() bool {
		st, err := c.Status(t.Context(), "http://"+e.Addrs()[0])
		return err == nil && st.Leader == 0
	})
	finds(t, examine(t, e.URL()), "etcd-member-down", "etcd-no-leader")
	must(t, e.Servers()[0].Kill())
	refused(t, e.URL(), "", backend.ErrUnavailable)
}

func TestEtcdAlone(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Args: []string{"--quota-backend-bytes=1048576"}})
	r := examine(t, e.URL())
	finds(t, r, "etcd-members", "etcd-compaction")
	has(t, r, "etcd-members", "1")
	named := strings.Replace(e.URL(), "://", "://user:s3cret@", 1) // nobody asks who it is
	finds(t, examine(t, named), "etcd-members", "etcd-compaction")
	c := etcdClient(t, e)
	big := strings.Repeat("x", 100_000)
	for i := 0; ; i++ {
		if _, err := c.Put(t.Context(), fmt.Sprint("big", i), big); err != nil {
			break // the quota
		}
		if st, err := c.Status(t.Context(), "http://"+e.Addrs()[0]); err == nil &&
			st.DbSize > 900_000 && st.DbSize < 1_000_000 {
			finds(t, examine(t, e.URL()), "etcd-members", "etcd-compaction", "etcd-quota")
		}
	}
	has(t, examine(t, e.URL()), "etcd-alarm", "NOSPACE")
	has(t, examine(t, e.URL()), "etcd-quota", "of 1048576 bytes")
}

func TestEtcdFlags(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{
		Args: append(slices.Clone(compacted), "--election-timeout=2500", "--heartbeat-interval=250",
			"--max-txn-ops=64"),
	})
	r := examine(t, e.URL())
	finds(t, r, "etcd-members", "etcd-election", "etcd-txn-ops")
	has(t, r, "etcd-election", "2500 ms")
	has(t, r, "etcd-txn-ops", "64")
	x := newExam()
	x.etcdFlags("h:2379", []string{"etcd", "--config-file=etcd.yaml", "--max-txn-ops=64"})
	finds(t, &x.report, "etcd-settings-unseen")
	for line, want := range map[string]string{
		"etcd --name=x --max-txn-ops=64": "64", "etcd -max-txn-ops 64": "64",
		"etcd --max-txn-ops-x=1": "", "etcd max-txn-ops=3": "", "etcd --max-txn-ops": "",
	} {
		if got := argument(strings.Fields(line), "max-txn-ops"); got != want {
			t.Errorf("%s: got %q, want %q", line, got, want)
		}
	}
}

func TestEtcdLearner(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Args: compacted})
	c := etcdClient(t, e)
	members, err := c.MemberList(t.Context())
	must(t, err)
	peer, public := "http://"+closedPort(t), "http://"+closedPort(t)
	added, err := c.MemberAddAsLearner(t.Context(), []string{peer})
	must(t, err)
	id := fmt.Sprintf("%x", added.Member.ID)
	finds(t, examine(t, e.URL()), "etcd-members", "etcd-learner", "etcd-member-down")
	program, err := stores.EtcdProgram(t.Context())
	must(t, err)
	first := members.Members[0]
	launch(t, nil, program, "--name=learner", "--data-dir="+t.TempDir(),
		"--listen-client-urls="+public, "--advertise-client-urls="+public,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
		"--initial-cluster-state=existing", "--log-level=error",
		"--initial-cluster="+first.Name+"="+first.PeerURLs[0]+",learner="+peer, compacted[0], compacted[1])
	host := strings.TrimPrefix(public, "http://")
	await(t, "the learner answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		st, err := c.Status(ctx, public)
		return err == nil && st.Leader != 0
	})
	r := examine(t, e.URL())
	finds(t, r, "etcd-members", "etcd-learner")
	has(t, r, "etcd-learner", id)
	r = examine(t, e.URL()+","+host)
	finds(t, r, "etcd-members", "etcd-learner", "etcd-learner-url")
	finds(t, examine(t, "etcd://"+host), "etcd-learner-url")
	await(t, "the learner may vote", func() bool {
		_, err := c.MemberPromote(t.Context(), added.Member.ID)
		return err == nil
	})
	finds(t, examine(t, e.URL()), "etcd-members")
	has(t, examine(t, e.URL()), "etcd-members", "2")
}

func TestEtcdEven(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("four servers")
	}
	e := servers.Etcd(t, servers.EtcdOptions{Members: 4, Args: compacted})
	finds(t, examine(t, e.URL()), "etcd-even")
}

// What two members of different versions say; one real server has one version.
func TestEtcdVersions(t *testing.T) {
	x := newExam()
	answer := func(v string) etcdAnswer {
		return etcdAnswer{v, &clientv3.StatusResponse{Header: &etcdserverpb.ResponseHeader{}, Version: v, Leader: 1}}
	}
	x.etcdStates([]etcdAnswer{answer("3.6.1"), answer("3.5.13"), answer("3.6.1")})
	finds(t, &x.report, "etcd-versions")
	has(t, &x.report, "etcd-versions", "3.5.13, 3.6.1")
	for v, old := range map[string]bool{
		"3.4.30": true, "3.4.31": false, "3.5.0": true, "3.5.12": true, "3.5.13": false,
		"3.6.0": false, "3.3.27": true,
	} {
		x := newExam()
		x.etcdStates([]etcdAnswer{answer(v)})
		if got := slices.Contains(x.report.ids(), "etcd-version"); got != old {
			t.Errorf("%s is too old: got %v, want %v", v, got, old)
		}
	}
}

func TestEtcdUsers(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Args: compacted})
	c := etcdClient(t, e)
	ctx := t.Context()
	role := func(name, from, end string, p clientv3.PermissionType) {
		_, err := c.RoleAdd(ctx, name)
		must(t, err)
		_, err = c.RoleGrantPermission(ctx, name, from, end, p)
		must(t, err)
		_, err = c.UserAdd(ctx, name, "s3cret")
		must(t, err)
		_, err = c.UserGrantRole(ctx, name, name)
		must(t, err)
	}
	readWrite, read := clientv3.PermissionType(clientv3.PermReadWrite), clientv3.PermissionType(clientv3.PermRead)
	role("app", "app:", clientv3.GetPrefixRangeEnd("app:"), readWrite)
	role("reader", "app:", clientv3.GetPrefixRangeEnd("app:"), read)
	role("part", "app:~lock", clientv3.GetPrefixRangeEnd("app:~lock"), readWrite)
	_, err := c.RoleGrantPermission(ctx, "part", "app:", clientv3.GetPrefixRangeEnd("app:"), read)
	must(t, err)
	role("all", "\x00", "\x00", readWrite)
	_, err = c.UserAdd(ctx, "root", "s3cret")
	must(t, err)
	_, err = c.UserGrantRole(ctx, "root", "root")
	must(t, err)
	_, err = c.AuthEnable(ctx)
	must(t, err)
	as := func(user, prefix string) string {
		return "etcd://" + user + ":s3cret@" + e.Addrs()[0] + "?prefix=" + url.QueryEscape(prefix)
	}
	for _, tt := range []struct {
		url  string
		want []string
	}{
		{as("app", "app:"), nil},
		{as("app", "app:x"), nil},
		{as("all", ""), nil},
		{as("root", ""), nil},
		{as("app", "app"), []string{"etcd-rights"}},
		{as("reader", "app:"), []string{"etcd-rights"}},
		{as("part", "app:"), []string{"etcd-rights"}},
	} {
		finds(t, examine(t, tt.url), append(tt.want, "etcd-members")...)
	}
	has(t, examine(t, "etcd://"+e.Addrs()[0]), "etcd-rights", "no user")
	refused(t, "etcd://app:wr0ng@"+e.Addrs()[0], "wr0ng", backend.ErrInvalid)
}

func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{TLS: true, Args: compacted})
	finds(t, examine(t, with(t, e.URL(), "tls_ca", e.CAFile())), "etcd-members")
	refused(t, e.URL(), "", backend.ErrUnavailable)
}

// A user that is known by its certificate cannot ask for its roles by name.
func TestEtcdCertificates(t *testing.T) {
	t.Parallel()
	// Any server's authority will do: its certificate is good for clients too, and names the user localhost.
	s := servers.Redis(t, servers.RedisOptions{TLS: true})
	program, err := stores.EtcdProgram(t.Context())
	must(t, err)
	cert, key := strings.Replace(s.CAFile(), "ca.pem", "server.pem", 1), strings.Replace(s.CAFile(),
		"ca.pem", "server.key", 1)
	host, peer := closedPort(t), "http://"+closedPort(t)
	launch(t, nil, program, "--data-dir="+t.TempDir(), "--listen-client-urls=https://"+host,
		"--advertise-client-urls=https://"+host, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer,
		"--log-level=error", "--client-cert-auth", "--trusted-ca-file="+s.CAFile(),
		"--cert-file="+cert, "--key-file="+key, compacted[0], compacted[1])
	secure := s.TLSConfig()
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	secure.Certificates = []tls.Certificate{pair}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"https://" + host}, TLS: secure, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	await(t, "etcd answers", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Get(ctx, "x")
		return err == nil
	})
	raw := with(t, "etcds://"+host, "tls_ca", s.CAFile(), "tls_cert", cert, "tls_key", key)
	finds(t, examine(t, raw), "etcd-members")
	for _, step := range []func() error{
		func() error { _, err := c.UserAdd(t.Context(), "root", "root"); return err },
		func() error { _, err := c.UserGrantRole(t.Context(), "root", "root"); return err },
		func() error { _, err := c.RoleAdd(t.Context(), "locks"); return err },
		func() error {
			_, err := c.RoleGrantPermission(t.Context(), "locks", "fencelock:",
				clientv3.GetPrefixRangeEnd("fencelock:"),
				clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func() error { _, err := c.UserAdd(t.Context(), "localhost", "p"); return err },
		func() error { _, err := c.UserGrantRole(t.Context(), "localhost", "locks"); return err },
		func() error { _, err := c.AuthEnable(t.Context()); return err },
	} {
		must(t, step())
	}
	finds(t, examine(t, raw), "etcd-members", "etcd-rights-unseen")
}

// A member whose HTTP side is not reachable: gRPC passes, plain HTTP does not.
func TestEtcdWithoutHTTP(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{Args: compacted})
	to, err := url.Parse("http://" + e.Addrs()[0])
	must(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	only := new(http.Protocols)
	only.SetUnencryptedHTTP2(true)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.Transport = &http.Transport{Protocols: only}
	proxy.FlushInterval = -1
	both := new(http.Protocols)
	both.SetHTTP1(true)
	both.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: both, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor == 1 {
			panic(http.ErrAbortHandler)
		}
		proxy.ServeHTTP(w, r)
	})}
	go func() { _ = server.Serve(l) }() // until Close
	t.Cleanup(func() { _ = server.Close() })
	finds(t, examine(t, "etcd://"+l.Addr().String()), "etcd-members", "etcd-clock-unseen", "etcd-settings-unseen")
}

func TestCovers(t *testing.T) {
	want := span{"b", "d"}
	for _, tt := range []struct {
		spans []span
		want  bool
	}{
		{nil, false},
		{[]span{{"b", "d"}}, true},
		{[]span{{"a", "\x00"}}, true},
		{[]span{{"c", "\x00"}}, false},
		{[]span{{"c", "e"}, {"a", "c"}}, true},
		{[]span{{"c1", "e"}, {"a", "c"}}, false},
		{[]span{{"b", ""}}, false},
	} {
		if got := covers(tt.spans, want); got != tt.want {
			t.Errorf("covers(%v) = %v", tt.spans, got)
		}
	}
}
