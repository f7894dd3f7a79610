package redis

import (
	"context"
	"encoding/json"
	"slices"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// placesAtOnce is how many slots one pipeline asks, and how many one script where it may.
const placesAtOnce = 1024

// places returns the tags of the slots that have the gates: all of a cluster, one elsewhere.
func (d *Driver) places() []string {
	if d.cluster != nil {
		return tags()[:]
	}
	return tags()[:1]
}

// gatesAt returns the KEYS of gatelist.lua in a slot.
func (d *Driver) gatesAt(tag string) []string {
	version := ours(tag) + "g" + d.prefix
	return []string{version, version + "\x00"}
}

// everywhere runs a script for each of these, many in one pipeline, and stops at the first error.
func everywhere[T any](ctx context.Context, d *Driver, s *script, of []T, words func(T) ([]string, []any), take func(T, *goredis.Cmd) error) error {
	for some := range slices.Chunk(of, placesAtOnce) {
		if err := together(ctx, d, s.EvalSha, some, words, func(left []T) error {
			// The servers that had not the script take it with its text.
			return together(ctx, d, s.Eval, left, words, nil, take)
		}, take); err != nil {
			return err
		}
	}
	return nil
}

// together is everywhere for one pipeline. unknown is given those whose server does not know the script by its hash.
func together[T any](ctx context.Context, d *Driver, eval func(context.Context, goredis.Scripter, []string, ...any) *goredis.Cmd,
	of []T, words func(T) ([]string, []any), unknown func([]T) error, take func(T, *goredis.Cmd) error,
) error {
	cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
		for _, one := range of {
			keys, args := words(one)
			eval(ctx, p, keys, args...)
		}
	})
	if err != nil {
		return err
	}
	var left []T
	for i, c := range cmds {
		cmd := c.(*goredis.Cmd)
		if unknown != nil && goredis.HasErrorPrefix(cmd.Err(), "NOSCRIPT") {
			left = append(left, of[i])
			continue
		}
		if err := take(of[i], cmd); err != nil {
			return d.meaning(err)
		}
	}
	if len(left) > 0 {
		return unknown(left)
	}
	return nil
}

// SetGate implements backend.Gater. On a cluster the first slot decides between several who change a gate at once.
func (d *Driver) SetGate(ctx context.Context, g backend.Gate, was int64) error {
	if err := backend.CheckGate(g); err != nil {
		return err
	}
	g.Torn = false
	record, err := json.Marshal(g)
	if err != nil {
		return err
	}
	all := d.places()
	for _, some := range [][]string{all[:1], all[1:]} {
		err := everywhere(ctx, d, gateScript, some, func(tag string) ([]string, []any) {
			return d.gatesAt(tag), []any{g.Move, record, g.Epoch, was}
		}, func(tag string, c *goredis.Cmd) error {
			switch n, err := c.Int(); {
			case err != nil:
				return err
			case n == 0:
				return backend.ErrGateMoved
			case n < 0:
				return badGate(d.gatesAt(tag)[0])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Gates implements backend.Gater.
func (d *Driver) Gates(ctx context.Context) ([]backend.Gate, error) {
	var parts [][]backend.Gate
	read := map[string]*gateList{} // by the text: the places have the same, as a rule
	err := everywhere(ctx, d, gatesScript, d.places(), func(tag string) ([]string, []any) {
		return d.gatesAt(tag), nil
	}, func(tag string, c *goredis.Cmd) error {
		reply, err := c.Result()
		if err != nil {
			return err
		}
		l, err := readGates(d.gatesAt(tag)[0], reply, read)
		if err == nil {
			parts = append(parts, l.gates)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return backend.MergeGates(parts), nil
}
