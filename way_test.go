package fencelock

import (
	"context"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/backend"
)

// driver grants every lock, and keeps the way on which it was asked.
type driver struct {
	backend.Driver
	way []string
}

func (*driver) Traits() backend.Traits                  { return backend.TraitsOf("memory") }
func (*driver) Calls() backend.Calls                    { return backend.Calls{Most: 2, Abreast: 1} }
func (*driver) Leave(context.Context, []*backend.Claim) {}
func (*driver) Close() error                            { return nil }
func (s *driver) Ask(_ context.Context, cs []*backend.Claim) {
	pcs := make([]uintptr, 100)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for more := true; more; {
		var f runtime.Frame
		f, more = frames.Next()
		name := f.Function[strings.LastIndexByte(f.Function, '/')+1:]
		if _, method, ok := strings.Cut(name, "(*"); ok {
			s.way = append(s.way, strings.Replace(method, ")", "", 1))
		}
	}
	slices.Reverse(s.way)
	cs[0].Grant = backend.Grant{Token: 1, Asked: backend.Now()}
}

// TestWayOfALock: the picture in the documentation of package backend has the functions that a Lock
// passes, each one in its place.
func TestWayOfALock(t *testing.T) {
	s := &driver{}
	l, err := New(s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := l.Mutex("n").Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("backend/doc.go")
	if err != nil {
		t.Fatal(err)
	}
	_, picture, _ := strings.Cut(string(text), "# The way of a Lock")
	picture, _, _ = strings.Cut(picture, "The grant goes back")
	drawn := regexp.MustCompile(`(?m)^//\t\W*(\w+\.\w+)`).FindAllStringSubmatch(picture, -1)
	if len(drawn) < 9 {
		t.Fatalf("the picture has %d functions, want 9 at least", len(drawn))
	}
	way := s.way
	for _, f := range drawn {
		i := slices.Index(way, f[1])
		if i < 0 {
			t.Fatalf("%s is not on the way, or not in its place: %v", f[1], s.way)
		}
		way = way[i+1:]
	}
	if passed := s.way[slices.Index(s.way, "mutex.Lock"):]; len(passed) > 13 {
		t.Errorf("a Lock passes %d functions, the picture has %d: %v", len(passed), len(drawn), passed)
	}
}
