package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/locks"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/view"
	"github.com/fencelock/fencelock/internal/meant"
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

// breakRequest is the body of POST /api/break.
type breakRequest struct {
	Name  string           `json:"name"`
	Token *fencelock.Token `json:"token"` // of the hold that is meant, as /api/locks has it
}

// breakMost bounds the store's part of a break.
const breakMost = 10 * time.Second

// serveBreak frees a lock for a client that has the secret token.
func (s *server) serveBreak(w http.ResponseWriter, r *http.Request) {
	if status, why := s.mayBreak(r); why != "" {
		s.a.Warn("break refused to %s: %s", r.RemoteAddr, why)
		sendRefusal(w, status, why)
		return
	}
	var want breakRequest
	// A name of 512 bytes, each of them escaped, has room.
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<10))
	body.DisallowUnknownFields()
	if err := body.Decode(&want); err != nil || want.Name == "" || want.Token == nil {
		sendRefusal(w, http.StatusBadRequest,
			`want {"name": "…", "token": N}, with the token of the hold that is meant`)
		return
	}
	if !strings.HasPrefix(want.Name, s.view.Prefix) {
		sendRefusal(w, http.StatusForbidden, "this page is about other names")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), breakMost)
	defer cancel()
	status, reply, err := s.breakHold(ctx, want.Name, *want.Token)
	if err != nil {
		sendRefusal(w, status, cli.Message(err))
		return
	}
	if reply.Broken {
		s.a.Warn("%s broke %s: it was held by %s, token %d",
			r.RemoteAddr, cli.Safe(reply.Name), cli.Safe(reply.Owner), reply.Token)
	}
	sendJSON(w, status, reply)
}

// mayBreak returns the reason why a request may not break, or "".
func (s *server) mayBreak(r *http.Request) (status int, why string) {
	if s.token == nil {
		return http.StatusForbidden,
			"this page is for looking only: serve was started without --allow-break"
	}
	// A foreign page can make a browser send a request here. It can neither hide the request's origin nor set
	// these headers.
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return http.StatusForbidden, "the request comes from another site"
	}
	kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType, "want Content-Type: application/json"
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(sum[:], s.token[:]) != 1 || !ok {
		return http.StatusUnauthorized,
			"wrong or no token: want the header Authorization: Bearer TOKEN"
	}
	return 0, ""
}

// breakHold frees a lock if it is still held with this token. It spares a later holder.
func (s *server) breakHold(
	ctx context.Context, name string, token fencelock.Token,
) (int, locks.Broken, error) {
	info, err := s.locks.Inspect(ctx, name)
	if err == nil && info.Held && info.Token == token && !locks.Foreign(info) {
		if err = s.locks.Break(meant.With(ctx, info), name); err == nil {
			reply := locks.Broken{Name: name, Broken: true, Owner: info.Owner, Token: info.Token}
			return http.StatusOK, reply, nil
		}
		if gone, ok := errors.AsType[*meant.GoneError](err); ok {
			info, err = gone.Now, nil
		}
	}
	switch {
	case err != nil:
		return s.statusOf(err), locks.Broken{}, err
	case !info.Held: // a later holder is another one
		return http.StatusOK, locks.Broken{Name: name}, nil
	case info.Token != token:
		err = fmt.Errorf("it is held with another token by now: %d", info.Token)
	case locks.InTransaction(s.locks):
		err = errors.New("it is held by a transaction of postgres.LockTx, or by hand: look at it in the database, " +
			"then fencelock break --foreign")
	default:
		err = errors.New("it was not locked by Fencelock: look at it in the store, then fencelock break --foreign")
	}
	return http.StatusConflict, locks.Broken{}, err
}

// statusOf returns the HTTP status of an error of the store.
func (s *server) statusOf(err error) int {
	if s.a.Code(err) == cli.ExitUsage {
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}
