package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/locks"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/serve"
	"github.com/fencelock/fencelock/internal/servers"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

const testToken = "0123456789abcdef-token"

// served is a serve in this process.
type served struct {
	t    *testing.T
	base string // its URL, without the / at the end
	said *feed
	end  func() int // interrupts it and returns its exit code
}

// serveOn starts one on a free port.
func serveOn(t *testing.T, url string, args ...string) *served {
	t.Helper()
	s := &served{t: t, said: newFeed()}
	env := map[string]string{"FENCELOCK_URL": url, "FENCELOCK_SERVE_TOKEN": testToken}
	a := &cli.App{
		In: strings.NewReader(""), Out: s.said, Err: s.said, TempDir: t.TempDir,
		Lookup: func(k string) (string, bool) { v, ok := env[k]; return v, ok },
	}
	done := make(chan int, 1)
	ctx, interrupt := context.WithCancel(context.Background())
	go func() {
		done <- a.Execute(ctx, root(a),
			append([]string{"serve", "--listen", "127.0.0.1:0", "--interval", "20ms"}, args...))
	}()
	code := -1
	s.end = func() int {
		interrupt()
		if code < 0 {
			code = <-done
		}
		return code
	}
	t.Cleanup(func() { s.end() })
	line := s.said.next(t)
	address, ok := strings.CutPrefix(line, "serving ")
	if !ok {
		t.Fatalf("got %q, want the address", line)
	}
	s.base = strings.TrimSuffix(address, "/")
	return s
}

// ask sends a request; header has pairs.
func (s *served) ask(method, path, body string, header ...string) (*http.Response, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for pair := range slices.Chunk(header, 2) {
		if pair[0] == "Host" {
			r.Host = pair[1]
		}
		r.Header.Set(pair[0], pair[1])
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp, string(data)
}

func (s *served) state() serve.State {
	s.t.Helper()
	_, body := s.ask("GET", "/api/locks", "")
	return decode[serve.State](s.t, body)
}

// breaks asks to break a lock as the page does.
func (s *served) breaks(body string, header ...string) (int, string) {
	s.t.Helper()
	resp, text := s.ask("POST", "/api/break", body,
		append([]string{"Content-Type", "application/json", "Authorization", "Bearer " + testToken},
			header...)...)
	return resp.StatusCode, text
}

func meaning(t *testing.T, name string, token fencelock.Token) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "token": token})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestServeLocks(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		first := hold(t, url, "jobs/a")
		hold(t, url, "other")
		s := serveOn(t, url, "jobs/")
		await(t, "the first look", func() bool { return s.state().At != nil })
		got := s.state()
		if len(got.Locks) != 1 || got.Locks[0].Name != "jobs/a" ||
			got.Locks[0].Token != first.Token() || !got.Locks[0].Older || got.Prefix != "jobs/" ||
			got.Interval != 20 || got.AllowBreak || got.Outage != nil || got.Age < 0 ||
			len(got.Changes) != 0 {
			t.Errorf("at first: got %+v", got)
		}
		second := hold(t, url, "jobs/b")
		await(t, "the acquisition", func() bool { return len(s.state().Changes) == 1 })
		if err := second.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, "the release", func() bool { return len(s.state().Changes) == 2 })
		changes := s.state().Changes
		for i, want := range []string{"acquired", "released"} {
			if c := changes[i]; c.Event != want || c.ID != int64(i+1) || c.Name != "jobs/b" ||
				c.Token != second.Token() {
				t.Errorf("change %d: got %+v, want %s", i, c, want)
			}
		}
		if code := s.end(); code != 0 {
			t.Errorf("code %d, want 0", code)
		}
	})
}

// The keys that docs/command.md promises.
func TestServeKeys(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	s := serveOn(t, url)
	await(t, "the first look", func() bool { return s.state().At != nil })
	if got := s.state().Store; got != url {
		t.Errorf("the store is %q, want %q", got, url)
	}
	hold(t, url, "n")
	await(t, "the lock", func() bool { return len(s.state().Changes) == 1 })
	_, body := s.ask("GET", "/api/locks", "")
	doc, err := os.ReadFile(filepath.Join("..", "..", "docs", "command.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(doc), "\n## serve\n")
	section, _, _ = strings.Cut(section, "\n## ")
	top := decode[map[string]any](t, body)
	nested := []any{top, top["locks"].([]any)[0], top["changes"].([]any)[0]}
	for _, object := range nested {
		for key := range object.(map[string]any) {
			if !strings.Contains(section, "`"+key+"`") {
				t.Errorf("docs/command.md does not say what %q is", key)
			}
		}
	}
}

func TestServeOutage(t *testing.T) {
	t.Parallel()
	r := servers.Redis(t, servers.RedisOptions{})
	s := serveOn(t, r.URL())
	hold(t, r.URL(), "n")
	await(t, "the lock", func() bool { return len(s.state().Locks) == 1 })
	if resp, body := s.ask("GET", "/healthz", ""); resp.StatusCode != 200 || body != "ok\n" {
		t.Errorf("healthz: got %d %q", resp.StatusCode, body)
	}
	if err := r.Stop(); err != nil {
		t.Fatal(err)
	}
	await(t, "the outage", func() bool { return s.state().Outage != nil })
	got := s.state()
	if got.Outage.Error == "" || time.Since(got.Outage.Since) > patience || len(got.Locks) != 1 {
		t.Errorf("got %+v of %+v, want the error and what was seen last", got.Outage, got)
	}
	if resp, body := s.ask("GET", "/healthz", ""); resp.StatusCode != 503 ||
		!strings.HasPrefix(body, "no answer from the store for ") {
		t.Errorf("healthz: got %d %q", resp.StatusCode, body)
	}
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, "the end of the outage", func() bool { return s.state().Outage == nil })
	if line := s.said.next(t); !strings.HasPrefix(line, "fencelock: ") {
		t.Errorf("said %q, want the error", line)
	}
	if line := s.said.next(t); line != "fencelock: the store answers again" {
		t.Errorf("said %q, want that it answers again", line)
	}
}

// Nothing on the page comes from elsewhere or is in the HTML itself, so that the policy can forbid both.
func TestServePage(t *testing.T) {
	t.Parallel()
	s := serveOn(t, fileStore(t))
	await(t, "the first look", func() bool { return s.state().At != nil }) // until then /healthz is 503
	for path, kind := range map[string]string{
		"/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css",
		"/icon.svg": "image/svg+xml", "/api/locks": "application/json", "/healthz": "text/plain",
	} {
		resp, body := s.ask("GET", path, "")
		if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) || body == "" {
			t.Errorf("%s: got %d %s", path, resp.StatusCode, resp.Header.Get("Content-Type"))
		}
		for _, h := range []string{
			"Content-Security-Policy", "X-Content-Type-Options", "Referrer-Policy",
			"Cross-Origin-Resource-Policy",
		} {
			if resp.Header.Get(h) == "" {
				t.Errorf("%s: no %s", path, h)
			}
		}
		if strings.Contains(path, ".") || path == "/" {
			text := strings.ReplaceAll(body, `xmlns="http://www.w3.org/2000/svg"`, "")
			for _, bad := range []string{
				"http:", "https:", "//cdn", " style=", " onclick=", "innerHTML", "outerHTML",
				"insertAdjacentHTML", "eval(", "@import",
			} {
				if strings.Contains(text, bad) {
					t.Errorf("%s has %q", path, bad)
				}
			}
		}
	}
	for _, c := range []struct {
		method, path string
		want         int
	}{
		{"GET", "/nope", 404},
		{"GET", "/serve.go", 404},
		{"GET", "/web/page.js", 404},
		{"POST", "/", 405},
		{"GET", "/api/break", 404},
		{"DELETE", "/api/locks", 405},
	} {
		if resp, _ := s.ask(c.method, c.path, ""); resp.StatusCode != c.want {
			t.Errorf("%s %s: got %d, want %d", c.method, c.path, resp.StatusCode, c.want)
		}
	}
}

// A page of another name cannot read this one through a name that it has turned to this machine.
func TestServeHosts(t *testing.T) {
	t.Parallel()
	s := serveOn(t, fileStore(t), "--host", "Locks.Example.com")
	await(t, "the store's first answer", func() bool {
		resp, _ := s.ask("GET", "/healthz", "")
		return resp.StatusCode == 200
	})
	for host, want := range map[string]int{
		"localhost": 200, "localhost:9000": 200, "127.0.0.1": 200, "127.0.0.1:1": 200,
		"[::1]:8420": 200, "10.0.0.7:8420": 200,
		"locks.example.com": 200, "LOCKS.example.com:8420": 200,
		"evil.example": 421, "evil.example:8420": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421,
	} {
		for _, path := range []string{"/", "/api/locks", "/healthz"} {
			if resp, body := s.ask("GET", path, "", "Host", host); resp.StatusCode != want {
				t.Errorf("%s of %s: got %d %q, want %d", path, host, resp.StatusCode, body, want)
			}
		}
	}
}

func TestServeBreak(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, url string) {
		s := serveOn(t, url, "--allow-break", "jobs/")
		lease := hold(t, url, "jobs/a")
		other := hold(t, url, "other")
		ours := []string{"Origin", s.base, "Sec-Fetch-Site", "same-origin"}
		for _, c := range []struct {
			name   string
			body   string
			header []string
			want   int
		}{
			{"no token", meaning(t, "jobs/a", lease.Token()), []string{"Authorization", ""}, 401},
			{
				"a wrong token", meaning(t, "jobs/a", lease.Token()),
				[]string{"Authorization", "Bearer " + testToken + "x"},
				401,
			},
			{"the bare token", meaning(t, "jobs/a", lease.Token()), []string{"Authorization", testToken}, 401},
			{"another origin", meaning(t, "jobs/a", lease.Token()), []string{"Origin", "http://evil.example"}, 403},
			{"another site", meaning(t, "jobs/a", lease.Token()), []string{"Sec-Fetch-Site", "cross-site"}, 403},
			{"another port's page", meaning(t, "jobs/a", lease.Token()), []string{"Sec-Fetch-Site", "same-site"}, 403},
			{"another name", meaning(t, "jobs/a", lease.Token()), []string{"Host", "evil.example"}, 421},
			{"a form", "name=jobs/a", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
			{"text", meaning(t, "jobs/a", lease.Token()), []string{"Content-Type", "text/plain"}, 415},
			{"no JSON", "jobs/a", nil, 400},
			{"no token of the hold", `{"name":"jobs/a"}`, nil, 400},
			{"an unknown key", `{"name":"jobs/a","token":1,"force":true}`, nil, 400},
			{"too much", `{"name":"` + strings.Repeat("x", 10_000) + `","token":1}`, nil, 400},
			{"a bad name", meaning(t, "jobs/"+strings.Repeat("x", 600), 1), nil, 400},
			{"a name elsewhere", meaning(t, "other", other.Token()), nil, 403},
			{"an older hold", meaning(t, "jobs/a", lease.Token()-1), ours, 409},
		} {
			if got, body := s.breaks(c.body, c.header...); got != c.want {
				t.Errorf("%s: got %d %q, want %d", c.name, got, body, c.want)
			}
		}
		if lease.Err() != nil || other.Err() != nil {
			t.Errorf("a refused break broke: %v, %v", lease.Err(), other.Err())
		}
		got, body := s.breaks(meaning(t, "jobs/a", lease.Token()), ours...)
		if reply := decode[locks.Broken](t, body); got != 200 || !reply.Broken ||
			reply.Owner != lease.Owner() || reply.Token != lease.Token() {
			t.Errorf("break: got %d %q", got, body)
		}
		await(t, "the holder is told", func() bool { return lease.Err() != nil })
		if got, body := s.breaks(meaning(t, "jobs/a", lease.Token())); got != 200 ||
			decode[locks.Broken](t, body).Broken {
			t.Errorf("again: got %d %q, want that it was free", got, body)
		}
	})
}

// A key that another program wrote has no token by which a page could name it.
func TestServeBreaksNothingForeign(t *testing.T) {
	t.Parallel()
	r := servers.Redis(t, servers.RedisOptions{})
	conn, err := net.Dial("tcp", r.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "SET fencelock:theirs value\r\n")
	if _, err := conn.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	s := serveOn(t, r.URL(), "--allow-break")
	if got, body := s.breaks(meaning(t, "theirs", 0)); got != 409 || !strings.Contains(body, "--foreign") {
		t.Errorf("got %d %q, want 409", got, body)
	}
}

func TestServeLooksOnly(t *testing.T) {
	t.Parallel()
	url := fileStore(t)
	s := serveOn(t, url)
	lease := hold(t, url, "n")
	if got, body := s.breaks(meaning(t, "n", lease.Token())); got != 403 ||
		!strings.Contains(body, "--allow-break") || lease.Err() != nil {
		t.Errorf("break: got %d %q, lease %v", got, body, lease.Err())
	}
}

func TestServeUsage(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("short\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"--listen", "8420"}, "HOST:PORT"},
		{[]string{"--listen", "0.0.0.0:0"}, "--allow-remote"},
		{[]string{"--listen", ":0"}, "--allow-remote"},
		{[]string{"--listen", taken.Addr().String()}, "cannot listen"},
		{[]string{"--allow-break"}, "has 0"},
		{[]string{"--allow-break", "--token-file", file}, "16 bytes"},
		{[]string{"--allow-break", "--token-file", file + ".nope"}, "--token-file"},
		{[]string{"--token-file", file}, "--allow-break"},
		{[]string{"--host", "http://x"}, "without scheme"},
		{[]string{"--interval", "1ms"}, "10ms"},
		{[]string{"a", "b"}, "PREFIX"},
	} {
		if got := invoke(t, on(fileStore(t)),
			append([]string{"serve"}, c.args...)...); got.code != 64 ||
			!strings.Contains(got.err, c.says) || strings.Contains(got.err, "short\n") {
			t.Errorf("serve %q: got %+v, want code 64 and %q", c.args, got, c.says)
		}
	}
}

func TestServeRemote(t *testing.T) {
	t.Parallel()
	s := serveOn(t, fileStore(t), "--listen", "0.0.0.0:0", "--allow-remote", "--allow-break")
	for _, want := range []string{"without a password", "unencrypted"} {
		if line := s.said.next(t); !strings.Contains(line, want) {
			t.Errorf("said %q, want what is exposed: %s", line, want)
		}
	}
}

// The token is nowhere to be seen.
func TestServeHidesTheToken(t *testing.T) {
	t.Parallel()
	s := serveOn(t, fileStore(t), "--allow-break", "--json=false")
	var all bytes.Buffer
	for _, path := range []string{"/", "/page.js", "/api/locks", "/healthz"} {
		resp, body := s.ask("GET", path, "")
		_ = resp.Header.Write(&all)
		all.WriteString(body)
	}
	_, body := s.breaks(`{"name":"n","token":1}`, "Authorization", "Bearer "+testToken+testToken)
	all.WriteString(body + s.said.next(t))
	if strings.Contains(all.String(), testToken) {
		t.Errorf("the token is in %q", all.String())
	}
}
