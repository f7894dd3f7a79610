// Command etcdserver is etcd itself, built from its module: Debian's package is too old, and a
// process of its own can be killed and paused alone, which an embedded server cannot. It takes
// etcd's own command line.
//
// It is a module of its own so that the server's dependencies stay out of Fencelock's go.mod. Package stores builds it
// once into the cache folder.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
