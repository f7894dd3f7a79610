package redlock

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/redisnode"
)

//go:embed *.lua
var files embed.FS

// remembered is what a library remembers of calls before, and a script, which has it too, does not:
// the run id of the server's process and what it was promoted from, how many calls changed
// something in each database, the clock as it was last read, the settings of each kind of client
// with the gates of its keyspace, and until when the expiry of each database's rings will do.
const remembered = "local RUN, PROMOTED, COUNTS, SEEN, SET, KINDS, RINGS = nil, nil, {}, nil, {}, 0, {}\n"

// body is what a node runs: many operations in one call.
var body = remembered + redisnode.Lua(files, "state", "gate", "vote", "hold", "look", "ahead", "run")

// script is body where a node has no functions: it asks for the run id in every call.
var (
	scriptText = "local keys, argv, LIBRARY = KEYS, ARGV, nil\n" + body + "return run(keys, argv)"
	script     = goredis.NewScript(scriptText)
)

// library is body as a function of Redis 7, whose name says which text it is. Local variables of a
// library live as long as the server's process, at most, and so does the run id: it is asked for
// once. LIBRARY is the field of the node's state with its count.
var (
	library = "fencelock_redlock_" + shortHash(body)
	libText = "#!lua name=" + library + "\nlocal LIBRARY = 's" + shortHash(body) + "'\n" + body +
		"redis.register_function{function_name='" + library + "', callback=run, flags={'allow-oom'}}"
)

func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// run runs body on a node, with arguments as asked makes them: as a function, which it loads if it
// is not there, or as a script where the node knows no functions or the user has no right to them,
// and as long as it does not take ours: it has no memory for it, or too few replicas.
func (n *node) run(ctx context.Context, args []any) ([]any, error) {
	for loaded := true; loaded && !n.scripts.Load(); {
		args[0], args[1] = "fcall", &library
		replies, err := n.client.Do(ctx, args...).Slice()
		switch {
		case err == nil:
			return replies, nil
		case goredis.HasErrorPrefix(err, "Function not found"):
			err = n.client.FunctionLoad(ctx, libText).Err()
			var answered goredis.Error
			if err != nil && !errors.As(err, &answered) {
				return nil, err
			}
			loaded = err == nil || strings.Contains(err.Error(), "already exists")
			n.scripts.Store(noFunctions(err))
		case noFunctions(err):
			n.scripts.Store(true)
		default:
			return nil, err
		}
	}
	args[0], args[1] = "evalsha", script.Hash()
	replies, err := n.client.Do(ctx, args...).Slice()
	if goredis.HasErrorPrefix(err, "NOSCRIPT") {
		args[0], args[1] = "eval", scriptText
		replies, err = n.client.Do(ctx, args...).Slice()
	}
	return replies, err
}

// noFunctions reports whether the node says that it knows no functions, or that the user has no right
// to them.
func noFunctions(err error) bool {
	return goredis.HasErrorPrefix(err, "unknown command") || goredis.HasErrorPrefix(err, "unknown subcommand") ||
		goredis.HasErrorPrefix(err, "NOPERM") && !redisnode.Forbidden(err)
}
