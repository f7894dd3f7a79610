// Package stores starts real stores (Redis, etcd, ZooKeeper, Postgres) for tests and benchmarks, and breaks them on
// purpose: each [Server] can be killed, paused, resumed and restarted at the same address, with its data or without.
//
// What a store needs (its configuration, its readiness check, its leader) is described here once; a [Launcher] runs the
// program. [Local] runs programs of this machine; package servers adds one that runs containers, and the helpers for
// tests. This package imports neither testing nor a container engine, so that a command may use it.
//
// All servers listen on 127.0.0.1 only, and none is safe for anything but tests.
package stores
