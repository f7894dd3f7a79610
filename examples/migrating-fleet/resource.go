package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fence"
)

// resource is what the lock guards: a counter that is read with GET and written with PUT, and does not
// care whether two clients do that at once.
type resource struct {
	server *http.Server
	listen net.Listener

	mu      sync.Mutex
	value   int
	written int // PUTs that were answered 200: increments that a worker was told of
	refused int // by the guard
}

// newResource returns one that is behind a guard, or not: fencing tokens are checked with every access.
func newResource(guarded bool) *resource {
	r := &resource{}
	var h http.Handler = r
	if guarded {
		h = fence.Handler(&fence.Memory{}, nil, r)
	}
	r.server = &http.Server{Handler: r.counting(h), ReadHeaderTimeout: time.Second}
	return r
}

// ServeHTTP is the counter.
func (r *resource) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if req.Method == http.MethodPut {
		body, _ := io.ReadAll(io.LimitReader(req.Body, 20)) // a short body is no number
		n, err := strconv.Atoi(string(body))
		if err != nil {
			http.Error(w, "want a number", http.StatusBadRequest)
			return
		}
		r.value = n
		r.written++
	}
	fmt.Fprint(w, r.value)
}

// counting counts what the guard refuses.
func (r *resource) counting(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		seen := &status{ResponseWriter: w}
		next.ServeHTTP(seen, req)
		if seen.code == http.StatusPreconditionFailed {
			r.mu.Lock()
			r.refused++
			r.mu.Unlock()
		}
	})
}

type status struct {
	http.ResponseWriter
	code int
}

// WriteHeader notes the code.
func (s *status) WriteHeader(code int) {
	s.code = code
	s.ResponseWriter.WriteHeader(code)
}

func (r *resource) serve() error {
	var err error
	if r.listen, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return err
	}
	go func() { _ = r.server.Serve(r.listen) }() // ends with close
	return nil
}

func (r *resource) url() string { return "http://" + r.listen.Addr().String() + "/counter" }

func (r *resource) close() { _ = r.server.Close() } // nobody reads the answers any more

func (r *resource) result() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	lost := "nothing lost"
	if n := r.written - r.value; n != 0 {
		lost = fmt.Sprintf("%d LOST", n)
	}
	return fmt.Sprintf("%d increments were acknowledged, the counter is %d: "+
		"%s; the guard refused %d", r.written, r.value, lost, r.refused)
}
