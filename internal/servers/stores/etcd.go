package stores

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
)

// EtcdOptions describes an etcd cluster.
type EtcdOptions struct {
	Members int      // 1 (default), 3, 5
	Args    []string // more of etcd's command line, such as "--quota-backend-bytes=4194304"
	TLS     bool     // for clients, with a certificate of an authority of its own
}

// EtcdCluster is an etcd cluster. A member that lost its data cannot come back as itself, as with
// any etcd: Restart(false) of one of several fails; of all of them ([Group.Restart]) it gives an
// empty cluster.
type EtcdCluster struct{ *Group }

// StartEtcd starts the members and returns when each answers with a leader.
func StartEtcd(ctx context.Context, l Launcher, o EtcdOptions) (*EtcdCluster, error) {
	e := &EtcdCluster{&Group{}}
	program := "etcd"
	if l.Kind() == "local" {
		var err error
		if program, err = EtcdProgram(ctx); err != nil {
			return nil, err
		}
	}
	m := &etcdMaker{launcher: l, options: o, group: e.Group, program: program}
	return e, e.run(ctx, max(o.Members, 1), 2, false, func(i int, all [][]int) (*Server, error) {
		return newServer("etcd", l, all[i][0], func(s *Server) error { return m.member(ctx, s, i, all) })
	})
}

// etcdMaker prepares the members of one cluster.
type etcdMaker struct {
	launcher  Launcher
	options   EtcdOptions
	group     *Group
	program   string
	authority *authority // of all members
}

// member prepares member i; the first port of each set is for clients, the second for peers.
func (m *etcdMaker) member(ctx context.Context, s *Server, i int, all [][]int) error {
	scheme, secure := "http", []string(nil)
	s.url = "etcd://" + s.addr
	if m.options.TLS {
		own, err := m.certificates(s.dir)
		if err != nil {
			return err
		}
		s.caFile, s.tls = own.caFile, own.client
		scheme, secure = "https", []string{"--cert-file=" + own.certFile, "--key-file=" + own.keyFile}
		s.url = "etcds://" + s.addr
	}
	var peers []string
	for j, set := range all {
		peers = append(peers, fmt.Sprintf("m%d=http://%s", j, loopback(set[1])))
	}
	client, peer := scheme+"://"+s.addr, "http://"+loopback(all[i][1])
	args := []string{
		fmt.Sprintf("--name=m%d", i), "--data-dir=" + filepath.Join(s.dir, "data", "etcd"),
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + strings.Join(peers, ","), "--initial-cluster-state=new",
		// Keeps clusters apart that meet on ports used before.
		"--initial-cluster-token=" + hash(strings.Join(peers, ",")), "--log-level=warn",
	}
	args = append(append(args, secure...), m.options.Args...)
	s.ready = func(ctx context.Context) error { return m.ready(ctx, s) }
	s.probe = etcdVersion(s)
	var err error
	s.process, err = m.launcher.Prepare(ctx, Spec{
		Store: "etcd", Name: fmt.Sprintf("etcd-m%d", i),
		Dir: s.dir, Data: filepath.Join(s.dir, "data"), Ports: all[i],
		Args: append([]string{m.program}, args...), Image: append([]string{"etcd"}, args...),
	})
	return err
}

// certificates puts the files of the one authority into a member's folder.
func (m *etcdMaker) certificates(dir string) (own *authority, err error) {
	if m.authority != nil {
		return m.authority.copyTo(dir)
	}
	m.authority, err = newAuthority(dir)
	return m.authority, err
}

// ready returns nil if a member can serve clients, or, while there is no majority that could, if it answers.
func (m *etcdMaker) ready(ctx context.Context, s *Server) error {
	body, err := httpGet(ctx, s, "/health")
	var health struct{ Health, Reason string }
	if err == nil {
		err = json.Unmarshal(body, &health)
	}
	if err == nil && health.Health != "true" {
		err = fmt.Errorf("health is %q: %s", health.Health, health.Reason)
	}
	if err != nil && !m.group.majority() {
		_, err = httpGet(ctx, s, "/version")
	}
	return err
}

func etcdVersion(s *Server) func(ctx context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		body, err := httpGet(ctx, s, "/version")
		if err != nil {
			return "", err
		}
		var version struct {
			Server string `json:"etcdserver"`
		}
		err = json.Unmarshal(body, &version)
		return version.Server, err
	}
}

// httpGet gets a page over a connection of its own.
func httpGet(ctx context.Context, s *Server, path string) ([]byte, error) {
	scheme := "http://"
	transport := &http.Transport{DisableKeepAlives: true}
	if s.tls != nil {
		scheme, transport.TLSClientConfig = "https://", s.TLSConfig()
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+s.addr+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", path, resp.Status, body)
	}
	return body, err
}

// Leader waits for a running member that says it is the leader.
func (e *EtcdCluster) Leader(ctx context.Context) (*Server, error) {
	return e.find(ctx, "leader", func(ctx context.Context, s *Server) (bool, error) {
		body, err := httpGet(ctx, s, "/metrics")
		return strings.Contains(string(body), "\netcd_server_is_leader 1\n"), err
	})
}

// URL is the address as this project's driver takes it.
func (e *EtcdCluster) URL() string {
	scheme := "etcd://"
	if e.servers[0].tls != nil {
		scheme = "etcds://"
	}
	return scheme + strings.Join(e.Addrs(), ",")
}
