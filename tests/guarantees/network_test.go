//go:build linux

package guarantees_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// network is a network namespace with nothing but a loopback device. A server in one listens at the
// address that it has for everybody; where another network has a proxy at that address, what is
// there reaches it, and what has none does not. It is gone with the processes in it.
//
// A nil network is that of this process.
type network struct{ file *os.File }

func newNetwork() (*network, error) {
	n := &network{}
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("make a network: %w", err)
		}
		var err error
		if n.file, err = os.Open("/proc/thread-self/ns/net"); err != nil {
			return err
		}
		return loopbackUp()
	})
	return n, err
}

func loopbackUp() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// onThread calls f on a thread that ends with it.
func onThread(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

// within calls f in the network.
func (n *network) within(f func() error) error {
	if n == nil {
		return f()
	}
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter a network: %w", err)
		}
		return f()
	})
}

func (n *network) listen(addr string) (l net.Listener, err error) {
	err = n.within(func() error {
		l, err = net.Listen("tcp", addr)
		return err
	})
	return l, err
}

func (n *network) dial(ctx context.Context, kind, addr string) (c net.Conn, err error) {
	err = n.within(func() error {
		c, err = (&net.Dialer{}).DialContext(ctx, kind, addr)
		return err
	})
	return c, err
}

// await is dial, also of one who is about to listen. A way between servers takes a connection
// before anybody else has: who is refused tries again, and who is taken and then cut off does not.
// A follower of ZooKeeper goes back into the election then, and its leader, which does not hear of
// it, waits for it in vain.
func (n *network) await(ctx context.Context, kind, addr string) (net.Conn, error) {
	for end := time.Now().Add(100 * time.Millisecond); ; {
		c, err := n.dial(ctx, kind, addr)
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(end) {
			return c, err
		}
		time.Sleep(2 * time.Millisecond) // the pause of a bounded poll
	}
}

// path is what other programs enter it by, as long as this process lives.
func (n *network) path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

func (n *network) close() {
	if n != nil {
		n.file.Close()
	}
}
