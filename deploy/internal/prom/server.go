// Package prom runs a Prometheus server for tests.
package prom

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
	"github.com/fencelock/fencelock/internal/servers/stores"
)

// Server is a Prometheus of a test's own, on a free port of the loopback address.
type Server struct {
	tb     testing.TB
	url    string
	client http.Client
}

// startMost bounds the start of a server.
const startMost = 30 * time.Second

var listening = regexp.MustCompile(`msg="?Listening on"? address=(127\.0\.0\.1:\d+)`)

// Start starts a server with a configuration, and flags besides, and ends it with the test. See
// servers.Program for where there is none.
func Start(tb testing.TB, config string, flags ...string) *Server {
	tb.Helper()
	program, dir := servers.Program(tb, "prometheus", "prometheus"), tb.TempDir()
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		tb.Fatal(err)
	}
	p, err := stores.Local{}.Prepare(context.Background(), stores.Spec{
		Store: "prometheus", Name: "prometheus", Dir: dir, Data: filepath.Join(dir, "data"),
		Args: append([]string{
			program, "--config.file=" + path, "--storage.tsdb.path=" + filepath.Join(dir, "data"),
			"--web.listen-address=127.0.0.1:0", "--log.level=info",
		}, flags...),
	})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startMost)
	defer cancel()
	if err := p.Start(ctx); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the log of prometheus ends with:\n%s", p.Tail())
		}
		if err := p.Close(); err != nil {
			tb.Errorf("close prometheus: %v", err)
		}
	})
	s := &Server{tb: tb, client: http.Client{Transport: &http.Transport{}}}
	tb.Cleanup(s.client.CloseIdleConnections)
	s.Await(ctx, "the address of prometheus", func(context.Context) error {
		log, err := os.ReadFile(filepath.Join(dir, "prometheus.log"))
		if err != nil {
			return err
		}
		m := listening.FindSubmatch(log)
		if m == nil {
			return fmt.Errorf("its log does not say where it listens:\n%s", p.Tail())
		}
		s.url = "http://" + string(m[1])
		return nil
	})
	s.Await(ctx, "prometheus", func(ctx context.Context) error { return s.get(ctx, "/-/ready", nil, nil) })
	return s
}

// Await looks until there is no error any more, and fails the test if ctx ends before.
func (s *Server) Await(ctx context.Context, what string, look func(context.Context) error) {
	s.tb.Helper()
	every := time.NewTicker(50 * time.Millisecond)
	defer every.Stop()
	for {
		err := look(ctx)
		if err == nil {
			return
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			s.tb.Fatalf("waiting for %s: %v", what, err)
		}
	}
}

// Sample is one value of a vector.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Query evaluates an expression now, and returns the vector.
func (s *Server) Query(ctx context.Context, expr string) ([]Sample, error) {
	var answer struct {
		Data struct {
			ResultType string
			Result     []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := s.get(ctx, "/api/v1/query", url.Values{"query": {expr}}, &answer); err != nil {
		return nil, err
	}
	if answer.Data.ResultType != "vector" {
		return nil, fmt.Errorf("%s: got a %s, want a vector", expr, answer.Data.ResultType)
	}
	var samples []Sample
	for _, r := range answer.Data.Result {
		text, _ := r.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", expr, err)
		}
		samples = append(samples, Sample{r.Metric, v})
	}
	return samples, nil
}

// Alert is one that is pending or firing.
type Alert struct {
	Labels, Annotations map[string]string
	State               string
}

// Alerts returns those that are pending or firing.
func (s *Server) Alerts(ctx context.Context) ([]Alert, error) {
	var answer struct{ Data struct{ Alerts []Alert } }
	err := s.get(ctx, "/api/v1/alerts", nil, &answer)
	return answer.Data.Alerts, err
}

// get reads JSON from the server's API.
func (s *Server) get(ctx context.Context, path string, query url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var why struct{ Error string }
		_ = json.NewDecoder(resp.Body).Decode(&why) // without it the status says enough
		return fmt.Errorf("%s?%s: %s %s", path, query.Encode(), resp.Status, why.Error)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(into)
}
