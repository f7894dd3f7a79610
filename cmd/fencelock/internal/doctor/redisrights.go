package doctor

import (
	"context"
	"slices"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// mayScript asks the server whether the user may run a command, without running it.
const mayScript = `return redis.acl_check_cmd(unpack(ARGV)) and 1 or 0`

// redisProbe is the name of the lock whose keys the rights are asked for. Nothing is written there.
const redisProbe = "fencelock doctor"

// scriptCommands are the commands that run a script.
func scriptCommands(lock string) [][]string {
	return [][]string{{"EVAL", "return 1", "1", lock}, {"EVALSHA", strings.Repeat("0", 40), "1", lock}}
}

// lockCommands are the commands of both drivers' scripts on the lock's own key.
func lockCommands(lock string) [][]string {
	return [][]string{
		{"TIME"},
		{"GET", lock},
		{"SET", lock, "v", "PX", "1"},
		{"DEL", lock},
		{"EXISTS", lock},
		{"PEXPIRE", lock, "1"},
		{"PTTL", lock},
	}
}

// redisCommands are the commands of the driver's scripts and requests on the keys of a lock. The driver keeps
// the keys "fl\0…" beside the lock's own.
func redisCommands(lock string) [][]string {
	const ours = "fl\x00{0}"
	return slices.Concat(scriptCommands(lock), lockCommands(lock), [][]string{
		{"GET", ours + "c"},
		{"SET", ours + "c", "1"},
		{"ZADD", ours + "q" + lock, "1", "n"},
		{"ZREM", ours + "q" + lock, "n"},
		{"ZRANGE", ours + "q" + lock, "0", "0"},
		{"ZSCORE", ours + "q" + lock, "n"},
		{"HSET", ours + "m" + lock, "n", "v"},
		{"HGET", ours + "m" + lock, "n"},
		{"HDEL", ours + "m" + lock, "n"},
		{"HVALS", ours + "m" + lock},
		{"MGET", ours + "c", ours + "g"},
		{"HGETALL", ours + "g\x00"},
	})
}

// redlockCommands are the commands of the Redlock driver, which needs no scripts where it has functions.
func redlockCommands(lock string, functions bool) [][]string {
	const state = "fl\x00rl"
	all := slices.Concat(lockCommands(lock), [][]string{
		{"INFO", "server"},
		{"MGET", lock},
		{"HSET", state, "n", "v"},
		{"HGET", state, "n"},
		{"HMGET", state, "n"},
		{"HDEL", state, "n"},
		{"HGETALL", state + ":w" + lock},
		{"HVALS", state + ":w" + lock},
		{"ZADD", state + ":q" + lock, "1", "n"},
		{"ZREM", state + ":q" + lock, "n"},
		{"ZRANGE", state + ":q" + lock, "0", "0"},
		{"RPUSH", state + ":r1", "n"},
		{"LTRIM", state + ":r1", "0", "1"},
		{"LPOS", state + ":r1", "n"},
	})
	if functions {
		return all
	}
	return append(scriptCommands(lock), all...)
}

// mayFunctions reports whether the user may load functions and call them. It calls a function that does not exist,
// and loads an empty text, which is no library.
func mayFunctions(ctx context.Context, c *goredis.Client) bool {
	call, load := c.FCall(ctx, "fencelock_doctor", nil).Err(), c.FunctionLoad(ctx, "").Err()
	return goredis.HasErrorPrefix(call, "Function not found") && !noPermission(load)
}

// redisRights asks for every right that the driver needs. cluster: pushes are sharded.
func (x *exam) redisRights(ctx context.Context, n *redisServer, cluster bool) {
	channels := [][]string{{"PUBLISH", "fl\x00p0", "m"}, {"SUBSCRIBE", "fl\x00p0"}}
	operator := [][]string{{"SCAN", "0"}, {"INFO"}}
	if cluster {
		channels = [][]string{{"SPUBLISH", "fl\x00{0}p0", "m"}, {"SSUBSCRIBE", "fl\x00{0}p0"}}
		operator = append(operator, []string{"CLUSTER", "SLOTS"})
	}
	if x.prefix == "" {
		x.add("redis-prefix", n.where, "empty")
		operator = append(operator, []string{"GETRANGE", redisProbe, "0", "0"}) // an application may have strings there
	}
	x.askRights(ctx, n, redisCommands(x.prefix+redisProbe), channels, operator)
}

func (x *exam) askRights(ctx context.Context, n *redisServer, keys, channels, operator [][]string) {
	for _, part := range []struct {
		id       string
		commands [][]string
	}{
		{"redis-rights", keys},
		{"redis-rights-channel", channels},
		{"redis-rights-operator", operator},
	} {
		refused, told := mayNot(ctx, n.Client, x.script, part.commands, keys[0][0] == "EVAL")
		switch {
		case !told:
			x.add("redis-rights-unseen", n.where, "Redis "+n.info["redis_version"])
			return
		case len(refused) > 0:
			x.add(part.id, n.where, strings.Join(refused, ", "))
		}
	}
}

// mayNot returns the commands that the user may not run; false if the server cannot tell. scripts says that the
// driver needs scripts as well.
func mayNot(
	ctx context.Context, c *goredis.Client, script string, commands [][]string, scripts bool,
) (refused []string, told bool) {
	replies := make([]*goredis.Cmd, len(commands))
	// The loop below looks at the error of each command.
	_, _ = c.Pipelined(ctx, func(p goredis.Pipeliner) error {
		for i, command := range commands {
			args := make([]any, len(command))
			for j, a := range command {
				args[j] = a
			}
			replies[i] = p.Eval(ctx, script, nil, args...)
		}
		return nil
	})
	for i, r := range replies {
		switch may, err := r.Int(); {
		case err == nil && may == 1:
		case err == nil, strings.Contains(err.Error(), "Invalid command"): // renamed away
			refused = append(refused, spell(commands[i]))
		case noPermission(err):
			return []string{"EVAL"}, scripts
		default:
			return nil, false
		}
	}
	return refused, true
}

// spell shows a command with its key or channel.
func spell(command []string) string {
	shown := strings.ReplaceAll(strings.Join(command[:min(len(command), 2)], " "), "\x00", `\0`)
	if command[0] == "EVAL" || command[0] == "EVALSHA" {
		return command[0]
	}
	return shown
}
