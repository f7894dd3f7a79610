package serve

import (
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
)

// web has the page.
//
//go:embed web
var web embed.FS

// policy allows the page its own script and style and its own server alone, and no HTML from scripts.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; " +
	"img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; " +
	"require-trusted-types-for 'script'; trusted-types 'none'"

// handler serves the page and the API.
func (s *server) handler() http.Handler {
	page, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // it is embedded
	}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /api/locks", func(w http.ResponseWriter, _ *http.Request) {
		sendJSON(w, http.StatusOK, s.state(time.Now()))
	})
	mux.HandleFunc("POST /api/break", s.serveBreak)
	mux.HandleFunc("GET /healthz", s.serveHealth)
	return s.guarded(mux)
}

// guarded refuses requests for other hosts, and gives browsers the page's policy.
func (s *server) guarded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		if !s.named(r.Host) {
			sendRefusal(w, http.StatusMisdirectedRequest,
				"this server is not reached by that name; --host NAME allows one")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// named reports whether a Host header names this server: an IP address, localhost, or a name of --host. No
// foreign page has an IP address as its name, but it can turn a name of its own to this machine (DNS
// rebinding).
func (s *server) named(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return name == "localhost" || slices.Contains(s.hosts, name)
}

func (s *server) serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if d, out := s.out(time.Now()); out {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, "no answer from the store for %s\n", view.Brief(d))
		return
	}
	fmt.Fprintln(w, "ok")
}

// sendJSON sends v as JSON.
func sendJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // the client may be gone
}

// sendRefusal sends the reason of a refusal.
func sendRefusal(w http.ResponseWriter, status int, why string) {
	sendJSON(w, status, struct {
		Error string `json:"error"`
	}{why})
}
