package tusd_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tus/tusd/v2/pkg/filestore"
	"github.com/tus/tusd/v2/pkg/handler"
	"golang.org/x/exp/slog"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/integrations/tusd"
	"github.com/fencelock/fencelock/locktest"
)

const content = "0123456789"

// uploads are those of a folder, which tell when a request that has sent something waits for more. A
// request that is interrupted between two reads goes on: tusd sets its network timeout anew after each.
type uploads struct {
	handler.DataStore
	silent chan struct{}
}

func (u uploads) GetUpload(ctx context.Context, id string) (handler.Upload, error) {
	up, err := u.DataStore.GetUpload(ctx, id)
	return upload{up, u.silent}, err
}

type upload struct {
	handler.Upload
	silent chan struct{}
}

func (u upload) WriteChunk(ctx context.Context, offset int64, body io.Reader) (int64, error) {
	return u.Upload.WriteChunk(ctx, offset, &reader{Reader: body, silent: u.silent})
}

type reader struct {
	io.Reader
	some   bool
	silent chan struct{}
}

func (r *reader) Read(b []byte) (int, error) {
	if r.some {
		select {
		case r.silent <- struct{}{}:
		default:
		}
	}
	r.some = true
	return r.Reader.Read(b)
}

// server returns the URL of a server of uploads in folder.
func server(t *testing.T, store *locktest.Store, folder string, wait time.Duration) (string, chan struct{}) {
	t.Helper()
	composer, silent := handler.NewStoreComposer(), make(chan struct{}, 1)
	composer.UseCore(uploads{filestore.New(folder), silent})
	tusd.New(store.Locker(t), "uploads/").UseIn(composer)
	h, err := handler.NewHandler(handler.Config{
		BasePath: "/files/", StoreComposer: composer, AcquireLockTimeout: wait,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(http.StripPrefix("/files/", h))
	t.Cleanup(s.Close)
	return s.URL + "/files/", silent
}

func send(t *testing.T, method, url string, body io.Reader, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Tus-Resumable", "1.0.0")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Errorf("%s: %v", method, err)
		return &http.Response{}, ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body) // an interrupted request may end in the middle
	return resp, string(text)
}

// create returns the id of a new upload.
func create(t *testing.T, url string) string {
	t.Helper()
	resp, text := send(t, http.MethodPost, url, nil, "Upload-Length", strconv.Itoa(len(content)))
	if resp.StatusCode != http.StatusCreated {
		t.Fatalf("create: %s %s", resp.Status, text)
	}
	return resp.Header.Get("Location")[strings.LastIndex(resp.Header.Get("Location"), "/")+1:]
}

func patch(t *testing.T, url string, offset int, body io.Reader) (*http.Response, string) {
	t.Helper()
	return send(t, http.MethodPatch, url, body,
		"Upload-Offset", strconv.Itoa(offset), "Content-Type", "application/offset+octet-stream")
}

// A stuck request has a client that has sent half of the upload, and is silent then.
func stuck(t *testing.T, url string, silent chan struct{}) (answer chan string) {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	answer = make(chan string, 1)
	go func() {
		_, text := patch(t, url, 0, r)
		answer <- text
	}()
	if _, err := io.WriteString(w, content[:len(content)/2]); err != nil {
		t.Fatal(err)
	}
	<-silent
	return answer
}

func TestResumeElsewhere(t *testing.T) {
	store, folder := locktest.New(t), t.TempDir()
	one, silent := server(t, store, folder, 10*time.Second)
	two, _ := server(t, store, folder, 10*time.Second)
	id := create(t, one)
	answer := stuck(t, one+id, silent)

	resp, _ := send(t, http.MethodHead, two+id, nil) // waits for the first
	offset, err := strconv.Atoi(resp.Header.Get("Upload-Offset"))
	if err != nil || offset != len(content)/2 {
		t.Fatalf("HEAD: %s with offset %q", resp.Status, resp.Header.Get("Upload-Offset"))
	}
	if text := <-answer; !strings.Contains(text, "ERR_UPLOAD_INTERRUPTED") {
		t.Errorf("the first got %q", text)
	}
	resp, text := patch(t, two+id, offset, strings.NewReader(content[offset:]))
	if resp.StatusCode != http.StatusNoContent {
		t.Errorf("PATCH: %s %s", resp.Status, text)
	}
	if stored, err := os.ReadFile(filepath.Join(folder, id)); err != nil || !bytes.Equal(stored, []byte(content)) {
		t.Errorf("stored %q, %v", stored, err)
	}
}

func TestLossInterrupts(t *testing.T) {
	store := locktest.New(t)
	one, silent := server(t, store, t.TempDir(), 10*time.Second)
	id := create(t, one)
	answer := stuck(t, one+id, silent)
	store.Lose("uploads/" + id)
	if text := <-answer; !strings.Contains(text, "ERR_UPLOAD_INTERRUPTED") {
		t.Errorf("got %q", text)
	}
}

func TestTimeout(t *testing.T) {
	store, folder := locktest.New(t), t.TempDir()
	hurried, _ := server(t, store, folder, 500*time.Millisecond)
	patient, _ := server(t, store, folder, time.Minute)
	id := create(t, patient)
	free := store.Hold("uploads/" + id)
	if _, text := patch(t, hurried+id, 0, strings.NewReader(content)); !strings.Contains(text, "ERR_LOCK_TIMEOUT") {
		t.Errorf("got %q", text)
	}
	free()
	if resp, text := patch(t, patient+id, 0, strings.NewReader(content)); resp.StatusCode != http.StatusNoContent {
		t.Errorf("got %s %s", resp.Status, text)
	}
}

func TestUnlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := locktest.New(t)
		locker := tusd.New(store.Locker(t), "")
		asked := 0
		lock := func() (handler.Lock, error) {
			k, err := locker.NewLock("a")
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context()) // which the lock outlives
			defer cancel()
			return k, k.Lock(ctx, func() { asked++ })
		}
		want := func(got, want error) {
			t.Helper()
			if !errors.Is(got, want) || want == nil && got != nil {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		k, err := lock()
		want(err, nil)
		time.Sleep(time.Minute) // renewed, and nobody wants it
		want(k.Unlock(), nil)
		if asked != 0 {
			t.Errorf("asked %d times for what nobody wants", asked)
		}
		store.AssertFree(t, "a")

		k, err = lock()
		want(err, nil)
		store.Lose("a")
		want(k.Unlock(), fencelock.ErrLost)
		if asked != 1 {
			t.Errorf("asked %d times to stop after a loss, want once", asked)
		}

		k, err = lock()
		want(err, nil)
		store.Outage(time.Hour)
		want(k.Unlock(), fencelock.ErrUnavailable)
		_, err = lock()
		want(err, fencelock.ErrUnavailable)
	})
}
