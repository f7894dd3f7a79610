package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/locks"
	"github.com/fencelock/fencelock/internal/meant"
)

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
