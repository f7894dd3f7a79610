package stores

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
)

// Ports are taken below the range from which systems pick the source ports of outgoing connections: while a server is
// down, a client's retry could otherwise be given the server's own port, and even connect to itself.
const (
	lowestPort  = 10000
	highestPort = 32767
)

// busOffset is the distance from a Redis Cluster node's port to its bus port.
const busOffset = 10000

// ports is a set of TCP ports of the loopback address that this process keeps for its servers, also while they are
// down.
type ports struct {
	numbers []int
	marks   []net.Listener
}

// takePorts finds n free ports. It holds every listener before it closes any, so that no port is found twice. With bus,
// the Redis Cluster bus port of each is free as well.
func takePorts(n int, bus bool) (*ports, error) {
	p := &ports{}
	var held []net.Listener
	defer func() { closeAll(held) }()
	highest := highestPort
	if bus {
		highest -= busOffset
	}
	for range 100 * n {
		if len(p.numbers) == n {
			return p, nil
		}
		port := lowestPort + rand.IntN(highest-lowestPort+1)
		wanted := []int{port}
		if bus {
			wanted = append(wanted, port+busOffset)
		}
		listeners, marks, err := hold(wanted)
		if err != nil {
			continue
		}
		held = append(held, listeners...)
		p.marks = append(p.marks, marks...)
		p.numbers = append(p.numbers, port)
	}
	return nil, errors.Join(fmt.Errorf("no %d free ports between %d and %d", n, lowestPort, highest), p.release())
}

// hold listens on all of the ports and marks them, or does neither.
func hold(numbers []int) (listeners, marks []net.Listener, err error) {
	for _, port := range numbers {
		m, err := mark(port) // first: another process with the mark may be starting a server there
		if err != nil {
			closeAll(listeners)
			closeAll(marks)
			return nil, nil, err
		}
		if m != nil {
			marks = append(marks, m)
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			closeAll(listeners)
			closeAll(marks)
			return nil, nil, err
		}
		listeners = append(listeners, l)
	}
	return listeners, marks, nil
}

// mark tells other test processes that a port is taken while nothing listens on it. An abstract Unix socket is exact,
// leaves no file, and the kernel removes it with its process. Elsewhere than on Linux chance has to do.
func mark(port int) (net.Listener, error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	return net.Listen("unix", "@fencelock-port-"+strconv.Itoa(port))
}

// release gives the ports back.
func (p *ports) release() error {
	return closeAll(p.marks)
}

func closeAll(ls []net.Listener) error {
	var errs []error
	for _, l := range ls {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// dial connects. The connection's deadline is that of ctx.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if deadline, ok := ctx.Deadline(); ok && err == nil {
		_ = conn.SetDeadline(deadline) // of an open connection: cannot fail
	}
	return conn, err
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portOf returns the port of an address that this package made.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return port
}
