package redis

import (
	"context"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/backend"
)

// each runs a script about many holds: on one server as one call with all their
// keys, on a cluster as a pipeline, which go-redis splits by node. Result i of the script is
// 1 if hold i is ours.
func (d *Driver) each(ctx context.Context, s *script, hs []*backend.Hold, args func(*backend.Hold) []any) []error {
	if d.cluster != nil {
		return d.inCluster(ctx, hs, func(ctx context.Context, p goredis.Pipeliner, h *backend.Hold) *goredis.Cmd {
			return s.Eval(ctx, p, []string{d.prefix + h.Name}, args(h)...)
		}, func(ours any, _ *backend.Hold) error { return verdict(ours) })
	}
	errs := make([]error, len(hs))
	keys := make([]string, len(hs))
	all := make([]any, 0, 2*len(hs))
	for i, h := range hs {
		keys[i] = d.prefix + h.Name
		all = append(all, args(h)...)
	}
	reply, err := d.run(ctx, s, keys, all...)
	ours, ok := reply.([]any)
	if err == nil && (!ok || len(ours) != len(hs)) {
		err = unexpected(reply)
	}
	for i := range hs {
		if errs[i] = err; err == nil {
			errs[i] = verdict(ours[i])
		}
	}
	return errs
}

// inCluster sends one pipeline to each node, so that one that does not
// answer delays no other, and takes in every answer that comes: a list with what verdict is to say about the hold.
func (d *Driver) inCluster(
	ctx context.Context, hs []*backend.Hold, ask func(context.Context, goredis.Pipeliner, *backend.Hold) *goredis.Cmd,
	verdict func(any, *backend.Hold) error,
) []error {
	errs := make([]error, len(hs))
	var wg sync.WaitGroup
	for _, of := range d.byNode(ctx, len(hs), func(i int) string { return d.prefix + hs[i].Name }) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, promptMost)
			defer cancel()
			cmds, err := d.pipeline(ctx, func(p goredis.Pipeliner) {
				for _, i := range of {
					ask(ctx, p, hs[i])
				}
			})
			for n, i := range of {
				if errs[i] = err; err != nil {
					continue
				}
				reply, err := cmds[n].(*goredis.Cmd).Slice()
				switch {
				case err != nil:
					errs[i] = d.meaning(err)
				case len(reply) != 1:
					errs[i] = unexpected(reply)
				default:
					errs[i] = verdict(reply[0], hs[i])
				}
			}
		})
	}
	wg.Wait()
	return errs
}

// byNode groups the indexes of n keys by the node that has them. Keys whose
// node is not known go together.
func (d *Driver) byNode(ctx context.Context, n int, key func(int) string) map[string][]int {
	groups := map[string][]int{}
	for i := range n {
		node := ""
		if d.cluster != nil {
			if c, err := d.cluster.MasterForKey(ctx, key(i)); err == nil {
				node = c.Options().Addr
			}
		}
		groups[node] = append(groups[node], i)
	}
	return groups
}

// pipeline sends what fill queues; each command has its own error. The scripts
// in it go as text, since a node that has not seen one could not be told within a pipeline.
func (d *Driver) pipeline(ctx context.Context, fill func(goredis.Pipeliner)) ([]goredis.Cmder, error) {
	return do(ctx, d, func(ctx context.Context) ([]goredis.Cmder, error) {
		cmds, err := d.client.Pipelined(ctx, func(p goredis.Pipeliner) error {
			fill(p)
			return nil
		})
		if timedOut(err) {
			return nil, err
		}
		return cmds, nil
	})
}

func verdict(ours any) error {
	switch ours {
	case int64(1):
		return nil
	case int64(0):
		return backend.ErrLost
	}
	return unexpected(ours)
}
