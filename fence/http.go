package fence

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/backend"
)

const (
	// Header is the header of a request that carries its fencing token, in decimal. A 428 of Handler
	// has it too, which tells it from one that asks for If-Match or the like.
	Header = "Fencing-Token"
	// MaxHeader is the header of a 412 that carries the greatest token seen, in decimal.
	MaxHeader = "Fencing-Token-Max"
)

// Handler guards a resource that is reached over HTTP, whatever the method: reads are accesses too.
// A request whose token is not stale goes to next, and no other to the same resource until next has
// returned. One without a token is answered 428 Precondition Required, one with a bad token 400,
// one with a stale token 412 Precondition Failed, with MaxHeader. One that never reached next,
// because its ctx ended while it waited for its turn or because the guard could not be asked, is
// answered 503 Service Unavailable.
//
// resource names what a request is about, such as the path. Nil stands for the URL's path.
func Handler(g Doer, resource func(*http.Request) string, next http.Handler) http.Handler {
	if resource == nil {
		resource = func(r *http.Request) string { return r.URL.Path }
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		values := r.Header.Values(Header)
		if len(values) == 0 {
			w.Header().Set(Header, "required")
			http.Error(w,
				"this resource wants the header "+Header+" with the token of the caller's lease",
				http.StatusPreconditionRequired)
			return
		}
		t, err := parse(values)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var stale *backend.StaleError
		reached := false
		err = g.Do(r.Context(), resource(r), t, func() error {
			reached = true
			next.ServeHTTP(w, r)
			return nil
		})
		switch {
		case err == nil || reached: // next has answered
		case errors.As(err, &stale):
			w.Header().Set(MaxHeader, strconv.FormatInt(stale.Max, 10))
			http.Error(w,
				fmt.Sprintf("token %d is stale: a newer holder with token %d was here",
					t, stale.Max), http.StatusPreconditionFailed)
		case errors.Is(err, backend.ErrInvalid): // a positive number, but no token
			http.Error(w, err.Error(), http.StatusBadRequest)
		default: // also where r's ctx ended: a bound of the program's own leaves somebody who reads the answer
			http.Error(w, "the access was not made: another one to this resource took too long, or the token "+
				"could not be checked", http.StatusServiceUnavailable)
		}
	})
}

// parse reads the one token of a request. It never quotes what it could not read.
func parse(values []string) (Token, error) {
	t, err := strconv.ParseInt(values[0], 10, 64)
	if err != nil || len(values) > 1 || t <= 0 {
		return 0, backend.Invalid("the header %s: want one positive decimal number", Header)
	}
	return t, nil
}

// Set puts a token into a request.
func Set(r *http.Request, t Token) { r.Header.Set(Header, strconv.FormatInt(t, 10)) }

// Response returns nil for a response that does not speak of tokens, a *backend.StaleError, which matches
// ErrStale, for a 412 of [Handler], and ErrInvalid for a request that lacked its token. It does not touch the body. A
// StaleError's Max is the floor for the next acquire: fencelock.WithFloor.
func Response(r *http.Response) error {
	switch r.StatusCode {
	case http.StatusPreconditionRequired:
		// A 428 to a request with its token asks for If-Match and the like, unless something on the way to Handler has
		// dropped the token.
		if r.Header.Get(Header) == "" && r.Request != nil && r.Request.Header.Get(Header) != "" {
			return nil
		}
		return backend.Invalid("the resource wants the header %s", Header)
	case http.StatusPreconditionFailed:
		// A 412 without the header answers If-Match and the like.
		if seen, err := strconv.ParseInt(r.Header.Get(MaxHeader), 10, 64); err == nil {
			return &backend.StaleError{Max: seen}
		}
	}
	return nil
}
