// Package servers gives tests real stores: started for the test, stopped with it, and able to fail on demand.
//
//	s := servers.Redis(t, servers.RedisOptions{Config: []string{"appendonly yes"}})
//	client := goredis.NewClient(&goredis.Options{Addr: s.Addr()})
//	…
//	s.Kill(); s.Start()      // a crash and its recovery, at the same address
//	s.Pause(); s.Resume()    // connected but silent
//	s.Restart(false)         // the data is lost
//
// A server runs as a program of this machine or in a container; its methods are the same. FENCELOCK_SERVERS says which:
// "local", "container", or "auto" (default: local if the program is there, because it starts faster, else a container).
// Containers take their images from FENCELOCK_IMAGE_REDIS, …_ETCD, …_ZOOKEEPER and …_POSTGRES, and FENCELOCK_PULL=never
// keeps them from being pulled. Containers use the host's network, so that clusters need no other addresses.
//
// A store that is not available skips the test and says what to install, unless FENCELOCK_REQUIRE lists it (or is
// "all"): then the test fails, so that nothing is skipped unseen where everything is meant to run.
//
// Package stores has the stores themselves, for commands too. This package adds the policy and the containers.
package servers
