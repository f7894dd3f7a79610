package doctor

import (
	"context"
	"strings"

	goredis "github.com/redis/go-redis/v9"
)

// mayScript asks the server whether the user may do something, without doing it.
const mayScript = `return redis.acl_check_cmd(unpack(ARGV)) and 1 or 0`

// redisProbe is the name of the lock whose keys the rights are asked for. Nothing is written there.
const redisProbe = "fencelock doctor"

// redisCommands are what the driver's scripts and requests do with the keys of a lock. "lock" is
// the lock's own key, "fl\0…" are the keys that the driver keeps beside it.
func redisCommands(lock string) [][]string {
	const ours = "fl\x00{0}"
	return [][]string{
		{"EVAL", "return 1", "1", lock},
		{"EVALSHA", strings.Repeat("0", 40), "1", lock},
		{"TIME"},
		{"GET", lock},
		{"SET", lock, "v", "PX", "1"},
		{"DEL", lock},
		{"EXISTS", lock},
		{"PEXPIRE", lock, "1"},
		{"PTTL", lock},
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
	}
}

// redlockCommands are the same of the Redlock driver.
func redlockCommands(lock string) [][]string {
	const state = "fl\x00rl"
	return [][]string{
		{"EVAL", "return 1", "1", lock},
		{"EVALSHA", strings.Repeat("0", 40), "1", lock},
		{"INFO", "server"},
		{"TIME"},
		{"GET", lock},
		{"MGET", lock},
		{"SET", lock, "v", "PX", "1"},
		{"DEL", lock},
		{"EXISTS", lock},
		{"PEXPIRE", lock, "1"},
		{"PTTL", lock},
		{"HSET", state, "n", "v"},
		{"HGET", state, "n"},
		{"HMGET", state, "n"},
		{"HDEL", state, "n"},
		{"HGETALL", state + ":w" + lock},
		{"HVALS", state + ":w" + lock},
		{"RPUSH", state + ":r1", "n"},
		{"LTRIM", state + ":r1", "0", "1"},
		{"LPOS", state + ":r1", "n"},
	}
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
		operator = append(operator, []string{"GETRANGE", redisProbe, "0", "0"}) // an application's strings stand there
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
		refused, told := mayNot(ctx, n.Client, x.script, part.commands)
		switch {
		case !told:
			x.add("redis-rights-unseen", n.where, "Redis "+n.info["redis_version"])
			return
		case len(refused) > 0:
			x.add(part.id, n.where, strings.Join(refused, ", "))
		}
	}
}

// mayNot returns which commands the user may not do; false if the server cannot tell.
func mayNot(
	ctx context.Context, c *goredis.Client, script string, commands [][]string,
) (refused []string, told bool) {
	replies := make([]*goredis.Cmd, len(commands))
	// An error of one command is that command's, and looked at below.
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
			return []string{"EVAL"}, true
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
