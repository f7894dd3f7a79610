package fence_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/fence"
)

// resource is a page that is written and read over HTTP behind a guard.
func resource(t *testing.T, next http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(fence.Handler(&fence.Memory{}, nil, next))
	t.Cleanup(s.Close)
	return s.URL
}

// request sends one request with header values for the token and returns the response, its body read.
func request(t *testing.T, method, url string, tokens ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range tokens {
		r.Header.Add(fence.Header, token)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

func TestHandler(t *testing.T) {
	served := 0
	url := resource(t, func(w http.ResponseWriter, r *http.Request) { served++; fmt.Fprint(w, "page ", r.Method) })
	for _, tt := range []struct {
		what, method, path string
		tokens             []string
		status             int
		err                error
	}{
		{"no token", "PUT", "/a", nil, http.StatusPreconditionRequired, fencelock.ErrInvalid},
		{"no number", "PUT", "/a", []string{"secret"}, http.StatusBadRequest, nil},
		{"zero", "PUT", "/a", []string{"0"}, http.StatusBadRequest, nil},
		{"negative", "PUT", "/a", []string{"-5"}, http.StatusBadRequest, nil},
		{"too great", "PUT", "/a", []string{"9223372036854775808"}, http.StatusBadRequest, nil},
		{"two", "PUT", "/a", []string{"5", "6"}, http.StatusBadRequest, nil},
		{"first", "PUT", "/a", []string{"5"}, http.StatusOK, nil},
		{"equal", "PUT", "/a", []string{"5"}, http.StatusOK, nil},
		{"a newer holder reads", "GET", "/a", []string{"7"}, http.StatusOK, nil},
		{"stale write", "PUT", "/a", []string{"5"}, http.StatusPreconditionFailed, fencelock.ErrStale},
		{"stale read", "GET", "/a", []string{"6"}, http.StatusPreconditionFailed, fencelock.ErrStale},
		{"another resource", "PUT", "/b", []string{"1"}, http.StatusOK, nil},
	} {
		before := served
		res, body := request(t, tt.method, url+tt.path, tt.tokens...)
		if res.StatusCode != tt.status {
			t.Errorf("%s: got %d, want %d", tt.what, res.StatusCode, tt.status)
		}
		if err := fence.Response(res); !errors.Is(err, tt.err) || (tt.err == nil && err != nil) {
			t.Errorf("%s: got %v, want %v", tt.what, err, tt.err)
		}
		if reached, want := served > before, tt.status == http.StatusOK; reached != want {
			t.Errorf("%s: reached the resource: got %v, want %v", tt.what, reached, want)
		}
		if tt.status == http.StatusBadRequest && !strings.Contains(body, "one positive decimal number") {
			t.Errorf("%s: got %q, want what a token is", tt.what, body)
		}
		if strings.Contains(body, "secret") {
			t.Errorf("%s: the answer quotes the header: %q", tt.what, body)
		}
	}
	res, _ := request(t, "GET", url+"/a", "1")
	var stale *fencelock.StaleError
	if err := fence.Response(res); !errors.As(err, &stale) || stale.Max != 7 {
		t.Errorf("got %v, want a StaleError with Max 7", err)
	}
}

// The check and what follows it are one: a newer token is not accepted in between.
func TestHandlerIsAtomic(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	var order []string
	url := resource(t, func(_ http.ResponseWriter, r *http.Request) {
		token := r.Header.Get(fence.Header)
		if token == "1" {
			close(entered)
			<-leave
		}
		mu.Lock()
		defer mu.Unlock()
		order = append(order, token)
	})
	var wg sync.WaitGroup
	wg.Go(func() { request(t, "PUT", url, "1") })
	<-entered
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := http.NewRequestWithContext(impatient, http.MethodPut, url, nil); err == nil {
		if _, err := http.DefaultClient.Do(r); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the ctx", err)
		}
	}
	wg.Go(func() { request(t, "PUT", url, "2") })
	request(t, "PUT", url+"/other", "2") // another resource does not wait
	close(leave)
	wg.Wait()
	if got := strings.Join(order, " "); got != "2 1 2" {
		t.Errorf("order of the accesses: got %q, want the other resource's, the first's, the second's", got)
	}
}

// A request whose ctx ends while it waits for its turn never reached the resource, and its answer says so.
func TestHandlerAnswersWhatNeverReachedTheResource(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	var served []string
	guarded := fence.Handler(&fence.Memory{}, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served = append(served, r.Header.Get(fence.Header)) // one at a time
		if len(served) == 1 {
			close(entered)
			<-leave
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	put := func(ctx context.Context, token fence.Token) int {
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/a", nil)
		fence.Set(r, token)
		w := httptest.NewRecorder()
		guarded.ServeHTTP(w, r)
		return w.Code
	}
	first := make(chan int)
	go func() { first <- put(t.Context(), 1) }()
	<-entered
	bounded, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if got := put(bounded, 2); got != http.StatusServiceUnavailable {
		t.Errorf("a request that waited in vain: got %d, want 503", got)
	}
	close(leave)
	if got := <-first; got != http.StatusNoContent {
		t.Errorf("the one before it: got %d, want 204", got)
	}
	// One whose ctx ends while the resource answers keeps the resource's answer.
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := put(ended, 3); got != http.StatusNoContent && got != http.StatusServiceUnavailable {
		t.Errorf("a request whose ctx has ended: got %d, want the resource's answer or 503", got)
	}
	if got := strings.Join(served, " "); got != "1" && got != "1 3" {
		t.Errorf("served: got %q, want 1 and perhaps 3, never 2", got)
	}
}

// failing is a guard that fails after the access, as a commit may.
type failing struct{ fence.Memory }

func (f *failing) Do(ctx context.Context, resource string, t fence.Token, access func() error) error {
	if err := f.Memory.Do(ctx, resource, t, access); err != nil {
		return err
	}
	return errors.New("the commit failed")
}

// What the resource has answered stays the answer, whatever comes afterwards.
func TestOneAnswer(t *testing.T) {
	guarded := fence.Handler(&failing{}, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "page")
	}))
	r := httptest.NewRequest(http.MethodPut, "/a", nil)
	fence.Set(r, 1)
	w := httptest.NewRecorder()
	guarded.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.String() != "page" {
		t.Errorf("got %d %q, want 200 and the page alone", w.Code, w.Body)
	}
}

// A resource that fails has been reached: a lower token is stale from then on.
func TestHandlerRemembersAFailedAccess(t *testing.T) {
	url := resource(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "half done", http.StatusInternalServerError)
	})
	for _, c := range []struct {
		token string
		want  int
	}{
		{"7", http.StatusInternalServerError},
		{"6", http.StatusPreconditionFailed},
		{"7", http.StatusInternalServerError},
	} {
		if res, _ := request(t, http.MethodPut, url, c.token); res.StatusCode != c.want {
			t.Errorf("token %s: got %d, want %d", c.token, res.StatusCode, c.want)
		}
	}
	r, _ := request(t, http.MethodPut, url, "9007199254740991")
	if r.StatusCode != http.StatusBadRequest {
		t.Errorf("a number that no store grants: got %d, want 400", r.StatusCode)
	}
}

func TestPanicLeavesTheResourceUsable(t *testing.T) {
	url := resource(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			panic(http.ErrAbortHandler)
		}
	})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	fence.Set(r, 3)
	if _, err := http.DefaultClient.Do(r); err == nil {
		t.Error("got an answer, want an aborted connection")
	}
	if res, _ := request(t, "GET", url, "3"); res.StatusCode != http.StatusOK {
		t.Errorf("afterwards: got %d, want 200", res.StatusCode)
	}
}

func TestOther412IsNoStaleToken(t *testing.T) {
	if err := fence.Response(&http.Response{StatusCode: http.StatusPreconditionFailed}); err != nil {
		t.Errorf("got %v, want nil for a 412 that does not speak of tokens", err)
	}
}

// A resource may want more than a token. What asks for that is told from a Handler that has seen no token, also where a
// proxy before it has dropped the one that was sent.
func TestOther428IsNoMissingToken(t *testing.T) {
	guarded := fence.Handler(&fence.Memory{}, nil, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "If-Match is wanted", http.StatusPreconditionRequired)
	}))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/dropped" {
			r.Header.Del(fence.Header)
		}
		guarded.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	for path, want := range map[string]error{"/a": nil, "/dropped": fencelock.ErrInvalid} {
		res, _ := request(t, http.MethodPut, s.URL+path, "5")
		if err := fence.Response(res); res.StatusCode != http.StatusPreconditionRequired || !errors.Is(err, want) {
			t.Errorf("%s: got %d and %v, want 428 and %v", path, res.StatusCode, err, want)
		}
	}
	byHand := &http.Response{StatusCode: http.StatusPreconditionRequired} // of any other server, to who knows what
	if err := fence.Response(byHand); !errors.Is(err, fencelock.ErrInvalid) {
		t.Errorf("got %v, want %v", err, fencelock.ErrInvalid)
	}
}

func TestDoEndsWithItsCtx(t *testing.T) {
	var g fence.Memory
	ctx, cancel := context.WithCancel(t.Context())
	err := g.Do(t.Context(), "r", 1, func() error {
		cancel()
		return g.Check(ctx, "r", 2) // the resource is taken
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}
