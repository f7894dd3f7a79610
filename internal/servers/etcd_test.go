package servers_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// etcdCall calls the JSON gateway of a member.
func etcdCall(t *testing.T, s *servers.Server, path, body string) (map[string]any, error) {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: s.TLSConfig(), DisableKeepAlives: true}
	scheme := "http"
	if s.TLSConfig() != nil {
		scheme = "https"
	}
	client := &http.Client{Transport: transport, Timeout: 5 * time.Second}
	resp, err := client.Post(scheme+"://"+s.Addr()+path, "application/json", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var reply map[string]any
	return reply, json.NewDecoder(resp.Body).Decode(&reply)
}

func etcdPut(t *testing.T, s *servers.Server, key string) {
	t.Helper()
	body := fmt.Sprintf(`{"key":%q,"value":"MQ=="}`, base64.StdEncoding.EncodeToString([]byte(key)))
	reply, err := etcdCall(t, s, "/v3/kv/put", body)
	if err != nil || reply["header"] == nil {
		t.Fatalf("put %s: %v, %v", key, reply, err)
	}
}

// etcdCount returns how many of the keys are there: "0" or "1".
func etcdCount(t *testing.T, s *servers.Server, key string) string {
	t.Helper()
	body := fmt.Sprintf(`{"key":%q}`, base64.StdEncoding.EncodeToString([]byte(key)))
	reply, err := etcdCall(t, s, "/v3/kv/range", body)
	if err != nil || reply["header"] == nil {
		t.Fatalf("range %s: %v, %v", key, reply, err)
	}
	if reply["count"] == nil {
		return "0"
	}
	return fmt.Sprint(reply["count"])
}

func TestEtcdKeepsAndLosesItsData(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{})
	s := e.Servers()[0]
	etcdPut(t, s, "key")
	must(t, s.Kill())
	must(t, s.Start())
	expect(t, "after kill", etcdCount(t, s, "key"), "1")
	must(t, s.Stop())
	must(t, s.Start())
	expect(t, "after stop", etcdCount(t, s, "key"), "1")
	must(t, s.Restart(false))
	expect(t, "after restart without data", etcdCount(t, s, "key"), "0")
}

func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	e := servers.Etcd(t, servers.EtcdOptions{TLS: true})
	if !strings.HasPrefix(e.URL(), "etcds://") || e.CAFile() == "" {
		t.Errorf("URL %q, CA file %q", e.URL(), e.CAFile())
	}
	etcdPut(t, e.Servers()[0], "key")
}

func TestEtcdClusterSurvivesItsLeader(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("an election takes a second or two")
	}
	e := servers.Etcd(t, servers.EtcdOptions{Members: 3})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	leader, err := e.Leader(ctx)
	must(t, err)
	etcdPut(t, leader, "key")
	must(t, leader.Kill())
	next, err := e.Leader(ctx)
	must(t, err)
	if next == leader {
		t.Fatal("a dead member leads")
	}
	must(t, e.AwaitOK(ctx))
	expect(t, "after the leader's death", etcdCount(t, next, "key"), "1")
	must(t, next.Kill())
	must(t, leader.Start()) // two of three: a majority again
	must(t, next.Start())
	must(t, e.Restart(true))
	expect(t, "after restart of all", etcdCount(t, leader, "key"), "1")

	leader, err = e.Leader(ctx)
	must(t, err)
	must(t, leader.Pause())
	next, err = e.Leader(ctx)
	must(t, err)
	if next == leader {
		t.Fatal("a paused member leads")
	}
	must(t, leader.Resume())
	must(t, e.AwaitOK(ctx))
}
