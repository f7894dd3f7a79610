package main

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/servers"
)

// browser is a page in a headless Chromium, driven through the DevTools protocol over a pipe: JSON messages that end in
// NUL, to the browser's descriptor 3 and from its descriptor 4 (chromium --help, --remote-debugging-pipe).
type browser struct {
	t       *testing.T
	to      *os.File
	session string

	mu      sync.Mutex
	last    int
	waiting map[int]chan devtools
	trouble []string // dialogs, exceptions, and what the policy refused
}

type devtools struct {
	ID      int             `json:"id,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// openBrowser starts a browser with an empty page. Where Chromium is missing the test is skipped, or fails if
// FENCELOCK_REQUIRE lists chromium or is "all".
func openBrowser(t *testing.T) *browser {
	t.Helper()
	program := servers.Program(t, "chromium", "chromium", "chromium-browser", "google-chrome")
	theirIn, to, err := os.Pipe()
	must(t, err)
	from, theirOut, err := os.Pipe()
	must(t, err)
	args := []string{
		"--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run",
		"--disable-dev-shm-usage", "--disable-background-networking",
		"--disable-component-update", "--no-proxy-server", "--user-data-dir=" + t.TempDir(),
		"--remote-debugging-pipe", "about:blank",
	}
	if os.Getuid() == 0 {
		args = append([]string{"--no-sandbox"}, args...) // root has none
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "LANGUAGE=en_GB", "LC_ALL=C.UTF-8")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	must(t, cmd.Start())
	_, _ = theirIn.Close(), theirOut.Close()
	b := &browser{t: t, to: to, waiting: map[int]chan devtools{}}
	read := make(chan struct{})
	go func() {
		defer close(read)
		b.read(bufio.NewReader(from))
	}()
	t.Cleanup(func() {
		_ = to.Close() // which ends it
		ended := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		ended.Stop()
		_ = from.Close()
		<-read
	})
	page := commandOf[struct{ TargetID string }](b, "Target.createTarget", map[string]any{"url": "about:blank"})
	b.session = commandOf[struct{ SessionID string }](b, "Target.attachToTarget",
		map[string]any{"targetId": page.TargetID, "flatten": true}).SessionID
	t.Cleanup(func() { // before the browser ends
		if t.Failed() {
			t.Logf("the page in the end:\n%s", b.eval("document.body.innerText"))
		}
	})
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.do(domain+".enable", nil)
	}
	return b
}

// read deals with what the browser sends until it ends.
func (b *browser) read(r *bufio.Reader) {
	for {
		data, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			devtools
			Params json.RawMessage `json:"params"`
		}
		if json.Unmarshal(data[:len(data)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch m.Method {
		case "":
			if c := b.waiting[m.ID]; c != nil {
				delete(b.waiting, m.ID)
				c <- m.devtools
			}
		case "Page.javascriptDialogOpening", "Runtime.exceptionThrown", "Log.entryAdded":
			if !strings.Contains(string(m.Params), "Failed to load resource") &&
				!strings.Contains(string(m.Params), "net::ERR_") {
				b.trouble = append(b.trouble, m.Method+" "+string(m.Params))
			}
		}
		b.mu.Unlock()
	}
}

// commandOf sends a command and returns its result.
func commandOf[T any](b *browser, method string, params any) T {
	b.t.Helper()
	reply := make(chan devtools, 1)
	b.mu.Lock()
	b.last++
	m := devtools{ID: b.last, Session: b.session, Method: method, Params: params}
	b.waiting[m.ID] = reply
	b.mu.Unlock()
	data, err := json.Marshal(m)
	must(b.t, err)
	_, err = b.to.Write(append(data, 0))
	must(b.t, err)
	var result T
	select {
	case m = <-reply:
	case <-time.After(patience):
		b.mu.Lock()
		defer b.mu.Unlock()
		b.t.Fatalf("%s: no answer after %v; trouble: %q", method, patience, b.trouble) // a dialog stops a page
	}
	if m.Error != nil {
		b.t.Fatalf("%s: %s", method, m.Error)
	}
	must(b.t, json.Unmarshal(m.Result, &result))
	return result
}

func (b *browser) do(method string, params map[string]any) {
	b.t.Helper()
	_ = commandOf[json.RawMessage](b, method, params)
}

// eval evaluates an expression in the page, and returns its value as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	got := commandOf[struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}](b, "Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true})
	if got.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, got.ExceptionDetails)
	}
	return fmt.Sprint(got.Result.Value)
}

// shows waits until an expression is true.
func (b *browser) shows(what, expression string) {
	b.t.Helper()
	await(b.t, what, func() bool { return b.eval("Boolean("+expression+")") == "true" })
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.do("Page.navigate", map[string]any{"url": url})
	b.shows("the page", `document.readyState === "complete" && location.href.startsWith("http")`)
}

// looks sets the size of the window and whether the user likes it dark.
func (b *browser) looks(width, height int, phone bool, scheme string) {
	b.t.Helper()
	b.do("Emulation.setDeviceMetricsOverride",
		map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone})
	b.do("Emulation.setEmulatedMedia", map[string]any{
		"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}},
	})
}

// press presses keys one by one: a character, or Tab, Enter, Escape, Space.
func (b *browser) press(keys ...string) {
	b.t.Helper()
	for _, k := range keys {
		text := map[string]string{"Enter": "\r", "Tab": "", "Escape": ""}
		code := map[string]int{"Enter": 13, "Tab": 9, "Escape": 27}[k]
		typed, special := text[k]
		if !special {
			typed = k
		}
		b.do("Input.dispatchKeyEvent", map[string]any{
			"type": "keyDown", "key": k, "text": typed, "windowsVirtualKeyCode": code,
		})
		b.do("Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": k, "windowsVirtualKeyCode": code})
	}
}

// picture saves what the window shows in the folder that FENCELOCK_PICTURES names, if it names one.
func (b *browser) picture(name string) {
	b.t.Helper()
	data, err := base64.StdEncoding.DecodeString(
		commandOf[struct{ Data string }](b, "Page.captureScreenshot",
			map[string]any{"format": "png"}).Data)
	must(b.t, err)
	if len(data) < 1000 {
		b.t.Errorf("%s: a picture of %d bytes", name, len(data))
	}
	if dir := os.Getenv("FENCELOCK_PICTURES"); dir != "" {
		must(b.t, os.WriteFile(dir+"/"+name+".png", data, 0o600))
	}
}

// quiet checks that no script of a stranger ran and nothing broke.
func (b *browser) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.trouble) > 0 {
		b.t.Errorf("the page has trouble: %q", b.trouble)
	}
}
