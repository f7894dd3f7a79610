package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/fencelock/fencelock"
)

// breakRequest is the body of POST /api/break.
type breakRequest struct {
	Name  string           `json:"name"`
	Token *fencelock.Token `json:"token"` // of the hold that is meant, as /api/locks has it
}

// breakReply is its answer.
type breakReply struct {
	Name   string          `json:"name"`
	Broken bool            `json:"broken"` // false: it was free already
	Owner  string          `json:"owner"`
	Token  fencelock.Token `json:"token"`
}

// breakMost bounds the store's part of it.
const breakMost = 10 * time.Second

// serveBreak frees a lock for who has the token.
func (s *server) serveBreak(w http.ResponseWriter, r *http.Request) {
	if status, why := s.mayBreak(r); why != "" {
		s.a.warn("break refused to %s: %s", r.RemoteAddr, why)
		sendRefusal(w, status, why)
		return
	}
	var want breakRequest
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, 8<<10)) // a name of 512 bytes, each of them escaped
	body.DisallowUnknownFields()
	if err := body.Decode(&want); err != nil || want.Name == "" || want.Token == nil {
		sendRefusal(w, http.StatusBadRequest, `want {"name": "…", "token": N}, with the token of the hold that is meant`)
		return
	}
	if !strings.HasPrefix(want.Name, s.view.prefix) {
		sendRefusal(w, http.StatusForbidden, "this page is about other names")
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), breakMost)
	defer cancel()
	status, reply, err := s.breakHold(ctx, want.Name, *want.Token)
	if err != nil {
		sendRefusal(w, status, message(err))
		return
	}
	if reply.Broken {
		s.a.warn("%s broke %s: it was held by %s, token %d", r.RemoteAddr, safe(reply.Name), safe(reply.Owner), reply.Token)
	}
	sendJSON(w, status, reply)
}

// mayBreak returns why not, if it may not.
func (s *server) mayBreak(r *http.Request) (status int, why string) {
	if s.token == nil {
		return http.StatusForbidden, "this page is for looking only: serve was started without --allow-break"
	}
	// A foreign page can make a browser send a request here, but neither hide where it comes from nor set these headers.
	if err := http.NewCrossOriginProtection().Check(r); err != nil {
		return http.StatusForbidden, "the request comes from another site"
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return http.StatusUnsupportedMediaType, "want Content-Type: application/json"
	}
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(given))
	if subtle.ConstantTimeCompare(sum[:], s.token[:]) != 1 || !ok {
		return http.StatusUnauthorized, "wrong or no token: want the header Authorization: Bearer TOKEN"
	}
	return 0, ""
}

// breakHold frees a lock if it is still held with this token: not the next holder's.
func (s *server) breakHold(ctx context.Context, name string, token fencelock.Token) (int, breakReply, error) {
	info, err := s.locks.Inspect(ctx, name)
	if err != nil {
		return statusOf(s.a, err), breakReply{}, err
	}
	if info.Held && info.Token != token {
		return http.StatusConflict, breakReply{}, fmt.Errorf("it is held with another token by now: %d", info.Token)
	}
	// Also when it looked free: a store may know of half a lock.
	if err := s.locks.Break(ctx, name); err != nil {
		return statusOf(s.a, err), breakReply{}, err
	}
	return http.StatusOK, breakReply{name, info.Held, info.Owner, info.Token}, nil
}

// statusOf is the status of an error of the store.
func statusOf(a *app, err error) int {
	if code, _ := a.codeOf(err); code == exitUsage {
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}
