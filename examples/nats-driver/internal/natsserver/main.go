// Command natsserver is a NATS server with JetStream for the tests of this module: a process of its
// own, from the module of nats-server, that can be stopped and killed.
//
//	natsserver DIR HOST:PORT USER PASSWORD
package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "natsserver:", err)
		os.Exit(1)
	}
}

// run runs until the process is killed.
func run(args []string) error {
	if len(args) != 4 {
		return errors.New("want DIR HOST:PORT USER PASSWORD")
	}
	host, port, err := net.SplitHostPort(args[1])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return err
	}
	s, err := server.NewServer(&server.Options{
		Host: host, Port: n, NoSigs: true, JetStream: true, StoreDir: args[0],
		Users: []*server.User{{Username: args[2], Password: args[3]}},
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return errors.New("not ready within 20s")
	}
	fmt.Println("ready")
	s.WaitForShutdown()
	return nil
}
