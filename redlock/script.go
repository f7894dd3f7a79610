package redlock

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed state.lua
	stateLua string
	//go:embed gate.lua
	gateLua string
	//go:embed vote.lua
	voteLua string
	//go:embed hold.lua
	holdLua string
	//go:embed look.lua
	lookLua string
	//go:embed ahead.lua
	aheadLua string
	//go:embed run.lua
	runLua string
)

// remembered is what a library remembers of calls before, and a script, which has it too, does not: the run id of the server's process, its
// clock as it was last read, the settings of each kind of client with the gates of its keyspace, and until when a ring's expiry will do.
const remembered = "local RUN, SEEN, SET, RINGS = nil, nil, {}, {}\n"

// body is what a node runs: many operations in one call.
var body = remembered + stateLua + gateLua + voteLua + holdLua + lookLua + aheadLua + runLua

// script is body where a node has no functions: it asks for the run id in every call.
var script = goredis.NewScript("local keys, argv = KEYS, ARGV\n" + body + "return run(keys, argv)")

// library is body as a function of Redis 7, whose name says which text it is. What is local to a library lives as long as the
// server's process, at most, and so does the run id: it is asked for once.
var (
	library = "fencelock_redlock_" + shortHash(body)
	libText = "#!lua name=" + library + "\n" + body +
		"redis.register_function{function_name='" + library + "', callback=run, flags={'allow-oom'}}"
)

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// run runs body on a node: as a function, which it loads if it is not there, or as a script where the node knows no functions or
// the user has no right to them.
func (n *node) run(ctx context.Context, keys []string, args []any) ([]any, error) {
	for !n.scripts.Load() {
		replies, err := n.client.FCall(ctx, library, keys, args...).Slice()
		switch {
		case goredis.HasErrorPrefix(err, "Function not found"):
			err = n.client.FunctionLoad(ctx, libText).Err()
			var answered goredis.Error
			if err != nil && !errors.As(err, &answered) {
				return nil, err
			}
			n.scripts.Store(err != nil && !strings.Contains(err.Error(), "already exists"))
		case goredis.HasErrorPrefix(err, "unknown command"), goredis.HasErrorPrefix(err, "NOPERM"):
			n.scripts.Store(true)
		default:
			return replies, err
		}
	}
	return script.Run(ctx, n.client, keys, args...).Slice()
}
