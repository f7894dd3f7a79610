package stores

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
)

// Group is the servers of one store that belong together.
type Group struct{ servers []*Server }

// Servers lists them; the order never changes.
func (g *Group) Servers() []*Server { return slices.Clone(g.servers) }

// Addrs lists their addresses.
func (g *Group) Addrs() []string {
	var addrs []string
	for _, s := range g.servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// String names them for logs.
func (g *Group) String() string {
	first := g.servers[0]
	if len(g.servers) == 1 {
		return first.String()
	}
	return fmt.Sprintf("%s %s %s ×%d %v", first.store, first.version, first.kind, len(g.servers), g.Addrs())
}

// At returns the server that listens on this address, or nil.
func (g *Group) At(addr string) *Server {
	i := slices.IndexFunc(g.servers, func(s *Server) bool { return s.addr == addr })
	if i < 0 {
		return nil
	}
	return g.servers[i]
}

// Kill kills them all.
func (g *Group) Kill() error { return g.all((*Server).Kill) }

// Start starts them all, with their data, and returns when each answers.
func (g *Group) Start() error {
	return g.start(context.Background())
}

// Restart kills all of them before it starts any, with what they had stored or with nothing.
func (g *Group) Restart(keepData bool) error {
	if err := g.Kill(); err != nil {
		return err
	}
	if !keepData {
		if err := g.all((*Server).Wipe); err != nil {
			return err
		}
	}
	return g.Start()
}

// find waits for a running server for which is returns true.
func (g *Group) find(
	ctx context.Context, what string, is func(context.Context, *Server) (bool, error),
) (*Server, error) {
	var found *Server
	err := await(ctx, nil, func(ctx context.Context) error {
		errs := []error{fmt.Errorf("no running server is the %s", what)}
		for _, s := range g.servers {
			if !s.up.Load() {
				continue
			}
			ok, err := is(ctx, s)
			if ok && err == nil {
				found = s
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	return found, err
}

// CAFile is the certificate of the authority that signed the first server's; empty without TLS.
func (g *Group) CAFile() string { return g.servers[0].CAFile() }

// TLSConfig trusts the first server's certificate; nil without TLS.
func (g *Group) TLSConfig() *tls.Config { return g.servers[0].TLSConfig() }

// AwaitOK waits until every running server serves clients.
func (g *Group) AwaitOK(ctx context.Context) error {
	for _, s := range g.servers {
		if s.up.Load() {
			if err := s.await(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// majority reports whether more than half of them run.
func (g *Group) majority() bool {
	n := 0
	for _, s := range g.servers {
		if s.up.Load() {
			n++
		}
	}
	return 2*n > len(g.servers)
}

// Close closes them all.
func (g *Group) Close() error { return g.all((*Server).Close) }

// each waits until check is nil for each of some servers.
func each(ctx context.Context, some []*Server, check func(context.Context, *Server) error) error {
	for _, s := range some {
		if err := s.until(ctx, func(ctx context.Context) error { return check(ctx, s) }); err != nil {
			return err
		}
	}
	return nil
}

// all calls f for each of them, also after an error.
func (g *Group) all(f func(*Server) error) error {
	var errs []error
	for _, s := range g.servers {
		errs = append(errs, f(s))
	}
	return errors.Join(errs...)
}

// start starts all members and then waits for each.
func (g *Group) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, s := range g.servers {
		if err := s.launch(ctx); err != nil {
			return err
		}
	}
	for _, s := range g.servers {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startGroup prepares n servers of one port each and starts them.
func startGroup(ctx context.Context, n int, bus bool, prepare func(port int) (*Server, error)) (*Group, error) {
	g := &Group{}
	return g, g.run(ctx, n, 1, bus, func(i int, all [][]int) (*Server, error) {
		return prepare(all[i][0])
	})
}

// run prepares n servers of k ports each and starts them, or leaves none.
func (g *Group) run(ctx context.Context, n, k int, bus bool, prepare func(i int, all [][]int) (*Server, error)) error {
	err := g.prepare(n, k, bus, prepare)
	if err == nil {
		err = g.start(ctx)
	}
	if err != nil {
		return errors.Join(err, g.Close())
	}
	return nil
}

// prepare makes n servers of k ports each. Every server knows the ports of all before any is started.
func (g *Group) prepare(n, k int, bus bool, prepare func(i int, all [][]int) (*Server, error)) error {
	var sets []*ports
	var all [][]int
	for range n {
		p, err := takePorts(k, bus)
		if err != nil {
			return errors.Join(err, releaseAll(sets))
		}
		sets, all = append(sets, p), append(all, p.numbers)
	}
	for i, p := range sets {
		s, err := prepare(i, all)
		if err != nil {
			return errors.Join(err, releaseAll(sets[i:]))
		}
		s.ports = p
		g.servers = append(g.servers, s)
	}
	return nil
}

func releaseAll(sets []*ports) error {
	var errs []error
	for _, p := range sets {
		errs = append(errs, p.release())
	}
	return errors.Join(errs...)
}
