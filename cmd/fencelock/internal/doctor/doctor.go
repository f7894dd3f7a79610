// Package doctor looks at the settings of a real server and tells which of them break what its
// backend promises.
//
// It only asks. It writes nothing, takes no lock and creates no schema. Besides connections a server
// may notice a ZooKeeper session, which the doctor closes. A question that the doctor has no right to
// ask becomes a finding of its own, since an unknown setting may be a wrong one.
package doctor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/backend"
	_ "github.com/fencelock/fencelock/backend/all" // the drivers' openers check the URL
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/core"
)

// askMost bounds one question to one server.
const askMost = 3 * time.Second

// Examine looks at the store that a URL names. The error matches backend.ErrInvalid for a URL that
// no driver takes and for a user that is refused, and backend.ErrUnavailable if no server answers.
// It shows no password, and neither does the Report.
func Examine(ctx context.Context, rawURL string) (*Report, error) {
	return newExam().run(ctx, rawURL)
}

// exam is one examination.
type exam struct {
	kinds  []Finding
	now    func() time.Time  // the wall clock of this machine
	least  map[string]string // the oldest version of each server that serves
	hold   time.Duration     // how long a lease of Postgres' mode row may be held
	script string            // asks a Redis server for a right

	u      *url.URL
	q      *backend.Query
	secure *tls.Config // of a ZooKeeper ensemble
	keys   url.Values
	prefix string
	ttl    time.Duration
	mu     sync.Mutex // for the goroutines of a client library
	report Report
}

func newExam() *exam {
	return &exam{
		kinds: Kinds(), now: time.Now, hold: time.Minute, script: mayScript,
		least: map[string]string{
			"redis": "6", "cluster": "7", "etcd": "3.4.31", "etcd-3.5": "3.5.13",
			"zookeeper": "3.5.3", "postgres": "15",
		},
	}
}

// saw notes a server that was looked at.
func (x *exam) saw(where string) { x.report.Servers = append(x.report.Servers, where) }

func (x *exam) run(ctx context.Context, rawURL string) (*Report, error) {
	if err := x.read(ctx, rawURL); err != nil {
		return nil, err
	}
	look := map[string]func(context.Context) error{
		"redis": x.redis, "rediss": x.redis, "redis+sentinel": x.redis, "redis+cluster": x.redis,
		"redlock": x.redlock, "redlocks": x.redlock,
		"etcd": x.etcd, "etcds": x.etcd,
		"zookeeper": x.zookeeper, "zookeepers": x.zookeeper,
		"postgres": x.postgres, "postgresql": x.postgres,
		"file": x.file, "memory": x.memory,
	}[x.u.Scheme]
	if look == nil {
		return nil, backend.Invalid("the doctor does not know the backend of scheme %q", x.u.Scheme)
	}
	for _, e := range backend.Catalog() {
		if slices.Contains(e.Schemes, x.u.Scheme) {
			x.report.Backend = e.Traits.Name
			if least := e.Traits.MinTTL; x.ttl < least {
				return nil, backend.Invalid("a TTL of %v is too short for %s: at least %v is needed",
					x.ttl, x.u.Scheme, least)
			}
		}
	}
	if err := look(ctx); err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if core.TimedOut(err) && x.u.Host != "" { // the error may name no server
			err = fmt.Errorf("no answer from %s: %w", x.u.Host, err)
		}
		return nil, cli.Unanswered(err)
	}
	x.report.sort()
	return &x.report, nil
}

// read takes the URL apart. The driver itself checks it. It is opened with hosts that do not exist,
// because some drivers send requests as soon as they are opened.
func (x *exam) read(ctx context.Context, rawURL string) error {
	var err error
	if x.u, err = backend.ParseURL(rawURL); err != nil {
		return err
	}
	if x.keys, err = url.ParseQuery(x.u.RawQuery); err != nil {
		return backend.Invalid("the query of the %q URL cannot be read: want key=value&key=value "+
			"with special characters percent-encoded", x.u.Scheme)
	}
	x.ttl, x.prefix = fencelock.DefaultTTL, backend.DefaultPrefix
	if x.keys.Has("prefix") {
		x.prefix = x.keys.Get("prefix")
	}
	if x.u.Scheme == "file" {
		return x.readFile(ctx) // opening it would make the directory
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	nowhere, real := elsewhere(rawURL)
	d, err := backend.Open(over, nowhere, func(q *backend.Query) {
		x.q, x.ttl = q, q.Duration("ttl", x.ttl)
	})
	if err == nil {
		return d.Close()
	}
	if errors.Is(err, backend.ErrInvalid) && !x.fewNodes() {
		why := strings.TrimPrefix(err.Error(), backend.ErrInvalid.Error()+": ")
		return backend.Invalid("%s", real.Replace(why))
	}
	return nil
}

// elsewhere returns the URL with an address without a server in place of each host, and a replacer
// that puts the real hosts back into a message.
func elsewhere(rawURL string) (string, *strings.Replacer) {
	scheme, rest, _ := strings.Cut(rawURL, "://")
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	from := strings.LastIndexByte(rest[:end], '@') + 1
	if scheme == "memory" {
		return rawURL, strings.NewReplacer()
	}
	var nowhere, back []string
	fake := map[string]string{}
	for host := range strings.SplitSeq(rest[from:end], ",") {
		if fake[host] == "" {
			fake[host] = fmt.Sprintf("127.0.0.%d:1", 1+len(fake)%250) // port 1 is no store's
			back = append(back, fake[host], host)
		}
		nowhere = append(nowhere, fake[host])
	}
	fakeURL := scheme + "://" + rest[:from] + strings.Join(nowhere, ",") + rest[end:]
	return fakeURL, strings.NewReplacer(back...)
}
