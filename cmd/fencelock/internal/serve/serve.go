// Package serve has the subcommand serve, a web page that shows the locks and their holders.
package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/locks"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// envToken is the variable with the secret token for breaking, unless --token-file has it.
const envToken = "FENCELOCK_SERVE_TOKEN"

// leastToken is the least length of that token in bytes. A shorter one can be guessed.
const leastToken = 16

// flags are the flags of serve.
type flags struct {
	listen      string
	hosts       []string
	allowRemote bool
	allowBreak  bool
	tokenFile   string
}

// Command returns the subcommand.
func Command(a *cli.App) *cobra.Command {
	interval := cli.Duration{D: 2 * time.Second, Least: 10 * time.Millisecond}
	var f flags
	cmd := &cobra.Command{
		Use:   "serve [PREFIX]",
		Short: "Show who holds what on a web page",
		Long: `Serve a page that shows the locks whose names have PREFIX, as watch does, until
interrupted. It looks at the store every interval, however many look at the
page. GET /api/locks has the same as JSON; GET /healthz is 200 while the store
answers and 503 while it does not.

It listens on loopback and changes nothing, unless you ask for more:

--allow-remote lets it listen on other addresses. Then whoever reaches the
address sees the names, owners and tokens of the locks, without a password and
without encryption. --host adds a name that the page is reached by; requests
for other names are refused, because a foreign page may have made its own
name mean this machine.

--allow-break lets the page break locks. The browser asks for the token in
FENCELOCK_SERVE_TOKEN, or in the file --token-file: 16 bytes at the least.
` + locks.Breaking,
		Example: "  fencelock serve jobs/\n" +
			"  FENCELOCK_SERVE_TOKEN=$(openssl rand -hex 32) fencelock serve --allow-break",
		Args: cli.Args(0, 1, "at most one PREFIX is taken"),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := f.server(a)
			if err != nil {
				return err
			}
			s.view.Prefix, s.view.Every = cli.Prefix(args), interval.D
			return a.Operate(cmd.Context(), "", s.serve)
		},
	}
	fl := cmd.Flags()
	fl.Var(&interval, "interval", "time between two looks at the store")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8420", "where to listen; port 0: any free one")
	fl.StringSliceVar(&f.hosts, "host", nil,
		"a `NAME` that the page is reached by, besides localhost and IP addresses; may be repeated")
	fl.BoolVar(&f.allowRemote, "allow-remote", false, "listen on an address that others can reach")
	fl.BoolVar(&f.allowBreak, "allow-break", false, "let the page break locks, with a token")
	fl.StringVar(&f.tokenFile, "token-file", "",
		"a `FILE` with that token; else it is in "+envToken)
	a.JSONFlag(cmd, "print what happens as one JSON object per line")
	return cmd
}

// server checks the flags.
func (f *flags) server(a *cli.App) (*server, error) {
	if _, _, err := net.SplitHostPort(f.listen); err != nil {
		return nil, cli.Usagef("--listen %q: want HOST:PORT, such as 127.0.0.1:8420", f.listen)
	}
	s := &server{a: a, listen: f.listen, allowRemote: f.allowRemote}
	for _, h := range f.hosts {
		if h == "" || strings.ContainsAny(h, ":/ ") {
			return nil, cli.Usagef(
				"--host %q: want a name without scheme and port, such as locks.example.com", h)
		}
		s.hosts = append(s.hosts, strings.ToLower(h))
	}
	if !f.allowBreak {
		if f.tokenFile != "" {
			return nil, cli.Usagef("--token-file is of use with --allow-break only")
		}
		return s, nil
	}
	token, from := "", envToken
	if f.tokenFile != "" {
		data, err := os.ReadFile(f.tokenFile)
		if err != nil {
			return nil, cli.Usagef("--token-file: %v", err)
		}
		token, from = string(data), "the token file"
	} else {
		token, _ = a.Lookup(envToken)
	}
	token = strings.TrimSpace(token)
	if len(token) < leastToken {
		return nil, cli.Usagef(
			"--allow-break: want a token of %d bytes or more in %s or --token-file; %s has %d",
			leastToken, envToken, from, len(token))
	}
	sum := sha256.Sum256([]byte(token))
	s.token = &sum
	return s, nil
}

// serve serves until ctx ends.
func (s *server) serve(ctx context.Context, store *fencelock.Locker) error {
	s.locks, s.started, s.where = store, time.Now(), s.a.Where()
	l, err := s.listenOn(ctx)
	if err != nil {
		return err
	}
	web := &http.Server{
		Handler:           s.handler(),
		ErrorLog:          log.New(io.Discard, "", 0), // any client can fill it by broken connections
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		defer cancel()
		ended <- web.Serve(l)
	}()
	s.announce(l.Addr())
	for next := range s.view.Follow(ctx, store) {
		s.take(next)
	}
	within, done := context.WithTimeout(context.WithoutCancel(ctx), closeMost)
	defer done()
	if web.Shutdown(within) != nil {
		_ = web.Close() // ends the answers that are still under way
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving has ended: %w", err)
	}
	return nil
}

// listenOn listens. It refuses an address that other machines can reach without --allow-remote.
func (s *server) listenOn(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.listen)
	if err != nil {
		return nil, cli.Usagef("cannot listen on %s: %v", s.listen, err)
	}
	if s.allowRemote || isLoopback(l.Addr()) {
		return l, nil
	}
	_ = l.Close()
	return nil, cli.Usagef("others can reach %s: they would see the names, owners and tokens of "+
		"the locks, without a password and without encryption; --allow-remote says that this is "+
		"wanted", s.listen)
}

func isLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// announce prints the page's URL, and warns if others can reach it.
func (s *server) announce(addr net.Addr) {
	url := "http://" + addr.String() + "/"
	if s.a.JSON {
		s.a.Print(struct {
			Serving string `json:"serving"`
		}{url})
	} else {
		fmt.Fprintf(s.a.Out, "serving %s\n", url)
	}
	if isLoopback(addr) {
		return
	}
	s.a.Warn("whoever can reach %s sees the names, owners and tokens of the locks, "+
		"without a password and without encryption", addr)
	if s.token != nil {
		s.a.Warn("the token that breaks locks crosses the network unencrypted: " +
			"put a proxy that speaks TLS in front")
	}
}

// closeMost bounds how long the last answers may take.
const closeMost = 2 * time.Second

// keepChanges is how many changes the page can show.
const keepChanges = 100

// take adds a look to the view.
func (s *server) take(l view.Look) {
	s.mu.Lock()
	had := s.view.Outage != nil
	for _, c := range s.view.Take(l) {
		if c.Event == view.Held {
			continue
		}
		s.lastChange++
		s.changes = append(s.changes, change{s.lastChange, c.JSON()})
	}
	s.changes = slices.Delete(s.changes, 0, max(len(s.changes)-keepChanges, 0))
	has := s.view.Outage != nil
	s.mu.Unlock()
	switch {
	case has && !had:
		s.a.Report(l.Err)
	case had && !has:
		s.a.Warn("the store answers again")
	}
}

// server is one serve. Its methods may be called from many goroutines.
type server struct {
	a           *cli.App
	locks       *fencelock.Locker
	listen      string
	hosts       []string // lower case
	allowRemote bool
	token       *[sha256.Size]byte // the hash of the secret for breaking; nil: breaking is not allowed
	started     time.Time
	where       string // the store's hosts

	mu         sync.Mutex
	view       view.View
	changes    []change // the last ones, oldest first
	lastChange int64
}

// change is a change with a number that rises for as long as the server runs.
type change struct {
	ID int64 `json:"id"`
	view.ChangeJSON
}

// State is the answer of /api/locks. Its keys are stable; docs/command.md describes them.
type State struct {
	Started    time.Time      `json:"started"`
	Backend    string         `json:"backend"`
	Store      string         `json:"store"` // where it is, without user and password
	Prefix     string         `json:"prefix"`
	Interval   int64          `json:"interval_ms"`
	AllowBreak bool           `json:"allow_break"`
	At         *time.Time     `json:"at"`     // of the store's last answer; null: none yet
	Age        int64          `json:"age_ms"` // of that answer
	Outage     *outage        `json:"outage"` // null: the store answers
	Locks      []view.RowJSON `json:"locks"`
	Changes    []change       `json:"changes"`
}

// outage is set while the store does not answer.
type outage struct {
	Since time.Time `json:"since"`
	Error string    `json:"error"`
}

// state returns the State as of now.
func (s *server) state(now time.Time) State {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := &s.view
	st := State{
		Started:    s.started,
		Backend:    s.locks.Traits().Name,
		Store:      s.where,
		Prefix:     v.Prefix,
		Interval:   v.Every.Milliseconds(),
		AllowBreak: s.token != nil,
		Locks:      make([]view.RowJSON, 0, len(v.Rows)),
		Changes:    append([]change{}, s.changes...),
	}
	if at := v.At; !at.IsZero() {
		st.At, st.Age = &at, now.Sub(at).Milliseconds()
	}
	if v.Outage != nil {
		st.Outage = &outage{v.Outage.Since, cli.Message(v.Outage.Err)}
	}
	for _, r := range v.Rows {
		st.Locks = append(st.Locks, r.JSON(now))
	}
	return st
}

// out reports whether the store does not answer or has not answered yet, and since when.
func (s *server) out(now time.Time) (time.Duration, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.view.Outage != nil:
		return now.Sub(s.view.Outage.Since), true
	case s.view.At.IsZero():
		return now.Sub(s.started), true
	}
	return 0, false
}
