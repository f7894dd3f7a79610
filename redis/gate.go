package redis

import (
	"context"
	"encoding/json"
	"strconv"

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

// gatesAt is the key of the gates of the keyspace in a slot.
func (d *Driver) gatesAt(tag string) string { return ours(tag) + "g" + d.prefix }

// everywhere asks something of each of these, many in one pipeline, and stops at the first error.
func everywhere[T any](ctx context.Context, d *Driver, of []T, ask func(goredis.Pipeliner, T), take func(T, goredis.Cmder) error) error {
	for len(of) > 0 {
		some := of[:min(len(of), placesAtOnce)]
		of = of[len(some):]
		cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
			for _, one := range some {
				ask(p, one)
			}
		})
		if err != nil {
			return err
		}
		for i, c := range cmds {
			if err := take(some[i], c); err != nil {
				return d.meaning(err)
			}
		}
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
		err := everywhere(ctx, d, some, func(p goredis.Pipeliner, tag string) {
			gateScript.Eval(ctx, p, []string{d.gatesAt(tag)}, g.Move, record, g.Epoch, was)
		}, func(tag string, c goredis.Cmder) error {
			switch n, err := c.(*goredis.Cmd).Int(); {
			case err != nil:
				return err
			case n == 0:
				return backend.ErrGateMoved
			case n < 0:
				return badGate(d.gatesAt(tag))
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
	known := map[string]backend.Gate{} // the places have the same records, as a rule
	err := everywhere(ctx, d, d.places(), func(p goredis.Pipeliner, tag string) {
		p.HGetAll(ctx, d.gatesAt(tag))
	}, func(tag string, c goredis.Cmder) error {
		here, err := c.(*goredis.MapStringStringCmd).Result()
		if err != nil {
			if goredis.HasErrorPrefix(err, "WRONGTYPE") {
				return badGate(d.gatesAt(tag))
			}
			return err
		}
		var gates []backend.Gate
		for move, record := range here {
			g, ok := known[record]
			if !ok {
				if err := json.Unmarshal([]byte(record), &g); err != nil || backend.CheckGate(g) != nil {
					return badGate(d.gatesAt(tag))
				}
				known[record] = g
			}
			if g.Move != move {
				return badGate(d.gatesAt(tag))
			}
			gates = append(gates, g)
		}
		parts = append(parts, gates)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return backend.MergeGates(parts), nil
}

// refusal reads {"gate", migration, epoch}.
func refusal(res []any, phase backend.Phase) error {
	if len(res) != 3 {
		return unexpected(res)
	}
	move, _ := res[1].(string)
	epoch, _ := res[2].(string)
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return unexpected(res)
	}
	return &backend.GateError{Move: move, Epoch: n, Phase: phase}
}

func badGate(key string) error {
	return backend.Invalid("the key %q, which keeps the gates of migrations, holds something else, which some other program put there: until that is gone nothing is granted", key)
}
