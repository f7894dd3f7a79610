package redis

import (
	"context"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
	"github.com/fencelock/fencelock/fence"
	"github.com/fencelock/fencelock/internal/redisnode"
)

// guardPrefix begins the keys of guards. The rest is the resource, verbatim, and with it the
// resource's hash tag.
const guardPrefix = "fl\x00fence:"

var checkTokenScript = NewFencedScript("return 1")

// CheckToken refuses a stale fencing token: it returns nil if t is at least as great as every token
// that was checked for the resource before, and remembers it; a *backend.StaleError, which matches
// ErrStale, if it is lower; ErrInvalid for a token that is not positive or more than an hour above
// the server's clock in µs and what was seen, or a foreign value under the guard's key; and otherwise the client's
// error.
//
// The check is atomic in itself, not with commands that follow: a holder may be overtaken in
// between. An access to data in the same Redis belongs into a [FencedScript]. A pipeline, also one of
// MULTI, is ErrInvalid: it answers only at Exec, when what follows the check is done too.
//
// The number lives in a key of its own, without expiry, for each resource that was ever checked, in
// the hash slot of the resource's {tag} if it has one. It is as durable as the data beside it: what
// rolls one back rolls back the other. Evicting it would let stale writers in: see
// maxmemory-policy.
func CheckToken(ctx context.Context, c goredis.Scripter, resource string, t backend.Token) error {
	res, err := checkTokenScript.Run(ctx, c, resource, t, nil)
	if err == nil && res != int64(1) {
		return redisnode.Unexpected(res) // what c wraps may be a pipeline, or in a MULTI
	}
	return err
}

// NewGuard returns [CheckToken] over a client as a fence.Guard.
func NewGuard(c goredis.Scripter) fence.Guard { return guard{c} }

type guard struct{ c goredis.Scripter }

func (g guard) Check(ctx context.Context, resource string, t backend.Token) error {
	return CheckToken(ctx, g.c, resource, t)
}

// A FencedScript is a Lua script that runs only under a token that is not stale: the check and the
// script are one step at the server. Reads of what a lock guards belong into one as well as writes.
type FencedScript struct{ script *goredis.Script }

// NewFencedScript returns src guarded by a check. src is written as for EVAL: its KEYS and ARGV are
// those given to Run. It may begin with a line such as #!lua flags=allow-oom.
func NewFencedScript(src string) *FencedScript {
	first := ""
	if strings.HasPrefix(src, "#!") {
		first, src, _ = strings.Cut(src, "\n")
		first += "\n"
	}
	return &FencedScript{goredis.NewScript(first + lua("fence") + src)}
}

// Run checks t for the resource as [CheckToken] does and, unless it is stale, runs the script. In a
// Cluster the resource and the keys must be of one slot: give them the same {tag}.
func (s *FencedScript) Run(ctx context.Context, c goredis.Scripter, resource string, t backend.Token,
	keys []string, args ...any,
) (any, error) {
	if t <= 0 {
		return nil, backend.Invalid("token %d: want a positive one", t)
	}
	if _, ok := c.(goredis.Pipeliner); ok {
		return nil, backend.Invalid("a pipeline answers only at Exec: give the client, which answers before " +
			"anything is done under a stale token")
	}
	if resource == "" {
		return nil, backend.Invalid("the resource is empty: want the name of what the token protects")
	}
	res, err := s.script.Run(ctx, c, append([]string{guardPrefix + resource}, keys...), append([]any{t}, args...)...).
		Result()
	return res, guarded(err)
}

// guarded translates the replies of fence.lua.
func guarded(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if rest, ok := strings.CutPrefix(text, "FLSTALE "); ok {
		rest, _, _ = strings.Cut(rest, " ") // some versions add the script's name
		if seen, perr := strconv.ParseInt(rest, 10, 64); perr == nil {
			return &backend.StaleError{Max: seen}
		}
	}
	if rest, ok := strings.CutPrefix(text, "FLAHEAD "); ok {
		now, _, _ := strings.Cut(rest, " ")
		return backend.Invalid(
			"the token is more than an hour (in µs) ahead of the server's clock and of every token that was seen: "+
				"want at most an hour above %s",
			now,
		)
	}
	if strings.HasPrefix(text, "FLFOREIGN") {
		return backend.Invalid("the guard's key holds something that is not a token")
	}
	return err
}
