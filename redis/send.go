package redis

import (
	"context"
	"errors"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/core"
	"github.com/fencelock/fencelock/internal/redisnode"
)

const (
	// requestMost bounds every request on one connection.
	requestMost = 3 * time.Second
	// atOnce is how many scripts go in one pipeline, and how many keys in one script, where it is about all slots.
	atOnce = 1024
)

// do makes a request that is about no claim.
func do[T any](ctx context.Context, s *store, send func(context.Context) (T, error)) (T, error) {
	res, err := core.Do(ctx, !s.prompt, &s.flying, send)
	return res, s.meaning(err)
}

// run runs a script that has the same effect twice as once.
func (s *store) run(ctx context.Context, sc *script, keys []string, args ...any) (any, error) {
	return do(ctx, s, func(ctx context.Context) (any, error) {
		return sc.Run(ctx, s.client, keys, args...).Result()
	})
}

// runAll is run with pointers to very many keys, which costs no memory for each.
func (s *store) runAll(ctx context.Context, sc *script, keys []*string, args []any) (any, error) {
	words := make([]any, 3, 3+len(keys)+len(args))
	words[0], words[1], words[2] = "evalsha", sc.hash, len(keys)
	for _, k := range keys {
		words = append(words, k)
	}
	words = append(words, args...)
	return do(ctx, s, func(ctx context.Context) (any, error) {
		reply, err := s.client.Do(ctx, words...).Result()
		if goredis.HasErrorPrefix(err, "NOSCRIPT") {
			words[0], words[1] = "eval", sc.text
			reply, err = s.client.Do(ctx, words...).Result()
		}
		return reply, err
	})
}

// pipeline sends what fill queues; each command has its own error.
func (s *store) pipeline(ctx context.Context, fill func(goredis.Pipeliner)) ([]goredis.Cmder, error) {
	return do(ctx, s, func(ctx context.Context) ([]goredis.Cmder, error) {
		cmds, err := s.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			fill(p)
			return nil
		})
		failed := func(c goredis.Cmder) bool { return c.Err() != nil }
		if core.TimedOut(err) || err != nil && !slices.ContainsFunc(cmds, failed) { // a hook of the program's sent none
			return nil, err
		}
		return cmds, nil
	})
}

// everywhere runs a script for each of these, many in one pipeline, and stops at the first error.
func everywhere[T any](ctx context.Context, s *store, sc *script, of []T,
	words func(T) ([]string, []any), take func(T, *goredis.Cmd) error,
) error {
	for some := range slices.Chunk(of, atOnce) {
		if err := together(ctx, s, sc, some, words, take); err != nil {
			return err
		}
	}
	return nil
}

// together is everywhere for one pipeline. A server that has not the script takes it with its text.
func together[T any](ctx context.Context, s *store, sc *script, of []T,
	words func(T) ([]string, []any), take func(T, *goredis.Cmd) error,
) error {
	for _, eval := range []func(context.Context, goredis.Scripter, []string, ...any) *goredis.Cmd{
		sc.EvalSha, sc.Eval,
	} {
		cmds, err := s.pipeline(ctx, func(p goredis.Pipeliner) {
			for _, one := range of {
				keys, args := words(one)
				eval(ctx, p, keys, args...)
			}
		})
		if err != nil {
			return err
		}
		var unknown []T
		for i, c := range cmds {
			cmd := c.(*goredis.Cmd)
			if goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
				unknown = append(unknown, of[i])
			} else if err := take(of[i], cmd); err != nil {
				return s.meaning(err)
			}
		}
		if of = unknown; len(of) == 0 {
			break
		}
	}
	return nil
}

// scriptError is what the server answered for one of several claims. It matches goredis.Error.
type scriptError string

func (e scriptError) Error() string { return string(e) }

// RedisError marks it as the server's.
func (scriptError) RedisError() {}

// answers are errors of the server that only this driver explains.
var answers = []redisnode.Answer{
	{Code: "FLEND", Means: "the counter of tokens of this lock's slot, a key that begins with fl, is " +
		"at the end of its numbers, or holds no number: some program has written to it"},
	{Code: "ERR This instance has cluster support disabled", Means: "the server is not one of a cluster: use redis://"},
	{Code: noSentinel + " ERR unknown command", Means: "a server that a redis+sentinel:// URL names is no sentinel"},
	{Code: "MOVED", Means: ofCluster},
	{Code: "CROSSSLOT", Means: ofCluster},
}

// noSentinel begins go-redis's error where no sentinel has told it of a master.
const noSentinel = "redis: all sentinels specified in configuration are unreachable:"

const ofCluster = "the server is a node of a cluster: use redis+cluster:// or a ClusterClient"

// meaning returns an error of the server as the contract has it. Where a node of a cluster gave no answer, another may
// have its slots by now: the client looks, in the background.
func (s *store) meaning(err error) error {
	var answered goredis.Error
	if s.cluster != nil && err != nil && !errors.As(err, &answered) && !errors.Is(err, context.Canceled) {
		s.cluster.ReloadState(context.Background())
	}
	if s.cluster != nil && (goredis.HasErrorPrefix(err, "MOVED") || goredis.HasErrorPrefix(err, "CROSSSLOT")) {
		return err
	}
	return redisnode.Meaning(err, answers...)
}
