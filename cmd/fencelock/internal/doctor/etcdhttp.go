package doctor

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const (
	// electionMost is the longest election timeout with which a dead waiter delays others by at
	// most 5 s.
	electionMost = 2000
	// txnLeast is how many operations a transaction must be able to have.
	txnLeast = 128
	// dateStep is the step of the Date header.
	dateStep = time.Second
)

// etcdHTTP asks a member for the time and for its command line, which gRPC does not tell.
func (x *exam) etcdHTTP(ctx context.Context, where string, secure *tls.Config) {
	transport := &http.Transport{TLSClientConfig: secure.Clone()}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	get := func(ctx context.Context, path string) (*http.Response, []byte, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, x.etcdScheme()+where+path, nil)
		if err != nil {
			return nil, nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, nil, err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return resp, body, err
	}
	s, err := x.sample(ctx, func(ctx context.Context) (time.Time, error) {
		resp, _, err := get(ctx, "/version")
		if err != nil {
			return time.Time{}, err
		}
		date, err := http.ParseTime(resp.Header.Get("Date"))
		return date.Add(dateStep / 2), err // it is rounded down
	})
	if err != nil {
		x.add("etcd-clock-unseen", where, "no answer")
	} else {
		x.judge(where, s, dateStep/2)
	}
	limited, cancel := context.WithTimeout(ctx, askMost)
	defer cancel()
	var vars struct {
		Line []string `json:"cmdline"`
	}
	_, body, err := get(limited, "/debug/vars")
	if err == nil {
		err = json.Unmarshal(body, &vars)
	}
	if err != nil || len(vars.Line) == 0 {
		x.add("etcd-settings-unseen", where, "no answer")
		return
	}
	x.etcdFlags(where, vars.Line)
}

// etcdFlags checks a member's command line. It cannot see the settings of a file or of the environment.
func (x *exam) etcdFlags(where string, line []string) {
	if argument(line, "config-file") != "" {
		x.add("etcd-settings-unseen", where, "it has a --config-file")
		return
	}
	ms, err := strconv.Atoi(argument(line, "election-timeout"))
	if err == nil && ms > electionMost {
		x.add("etcd-election", where, strconv.Itoa(ms)+" ms")
	}
	if n, err := strconv.Atoi(argument(line, "max-txn-ops")); err == nil && n < txnLeast {
		x.add("etcd-txn-ops", where, strconv.Itoa(n))
	}
	if v := argument(line, "auto-compaction-retention"); v == "" || v == "0" {
		x.add("etcd-compaction", where, "not on the command line")
	}
}

// argument returns the value of a flag of a command line; empty if it is not there.
func argument(line []string, name string) string {
	for i, arg := range line {
		arg, dashed := strings.CutPrefix(strings.Replace(arg, "--", "-", 1), "-")
		key, value, whole := strings.Cut(arg, "=")
		switch {
		case !dashed || key != name:
		case whole:
			return value
		case i+1 < len(line):
			return line[i+1]
		}
	}
	return ""
}
