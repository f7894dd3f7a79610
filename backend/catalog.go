package backend

import "time"

// An Entry of the catalog describes a backend of this library, whether or not
// the program imports it.
type Entry struct {
	Traits  Traits
	Schemes []string // the URL schemes that choose it; none for a further mode of the entry before it
	Import  string   // the package that registers them
}

// Catalog returns the backends of this library with their traits: the one place
// from which drivers take their Traits, messages say who has what is missing,
// and the documents render their tables. The caller may change what it gets.
func Catalog() []Entry {
	const module = "github.com/fencelock/fencelock/"
	return []Entry{
		{
			Traits: Traits{
				Name: "memory", Fencing: Anchored, FIFO: true, Grace: true, MinHold: true,
				DeadWaiter: 0, MinTTL: 50 * time.Millisecond, Resolution: time.Millisecond,
				Revoked: 100 * time.Millisecond, Readers: true, Permits: MostPermits,
			},
			Schemes: []string{"memory"},
			Import:  module + "backend/memory",
		},
		{
			Traits: Traits{
				Name: "file", Fencing: Anchored, FIFO: true, Grace: true, MinHold: true,
				DeadWaiter: 3 * time.Second, MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond,
				Revoked: time.Second, Readers: true, Permits: MostPermits,
			},
			Schemes: []string{"file"},
			Import:  module + "backend/file",
		},
		{
			Traits: Traits{
				Name: "redis", Fencing: Anchored, FIFO: true, Grace: true, MinHold: true,
				DeadWaiter: 5 * time.Second, MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond,
				Revoked: time.Second, Readers: true, Permits: MostPermits,
			},
			Schemes: []string{"redis", "rediss", "redis+sentinel", "redis+cluster"},
			Import:  module + "redis",
		},
		{
			Traits: Traits{
				Name: "redlock", Fencing: Anchored, SurvivesNode: true, Grace: true, MinHold: true,
				DeadWaiter: 5 * time.Second, MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond,
				Revoked: time.Second,
			},
			Schemes: []string{"redlock", "redlocks"},
			Import:  module + "redlock",
		},
		{
			Traits: Traits{
				Name: "etcd", Fencing: Durable, FIFO: true, ClockFree: true, SurvivesNode: true,
				Grace: true, MinHold: true, DeadWaiter: 5 * time.Second, MinTTL: time.Second, Resolution: time.Second,
				Revoked: time.Second, Readers: true, Permits: MostPermits,
			},
			Schemes: []string{"etcd", "etcds"},
			Import:  module + "etcd",
		},
		{
			Traits: Traits{
				Name: "zookeeper", Fencing: Durable, FIFO: true, ClockFree: true, SurvivesNode: true, Grace: true,
				DeadWaiter: 5 * time.Second, MinTTL: time.Second, Resolution: 2 * time.Second,
				Revoked: time.Second, Readers: true, Permits: MostPermits,
			},
			Schemes: []string{"zookeeper", "zookeepers"},
			Import:  module + "zookeeper",
		},
		{
			Traits: Traits{
				Name: "postgres-row", Fencing: Durable, FIFO: true, ClockFree: true, Transactional: true, Grace: true,
				DeadWaiter: 5 * time.Second, LeasePerConn: true, MinTTL: 100 * time.Millisecond,
				Resolution: time.Millisecond,
				Revoked:    time.Second,
			},
			Schemes: []string{"postgres", "postgresql"},
			Import:  module + "postgres",
		},
		{
			Traits: Traits{
				Name: "postgres-advisory", Fencing: Durable, FIFO: true, ClockFree: true, Transactional: true,
				Grace: true, DeadWaiter: 5 * time.Second, LeasePerConn: true, MinTTL: 100 * time.Millisecond,
				Resolution: time.Millisecond,
				Revoked:    time.Second,
			},
			Import: module + "postgres",
		},
		{
			Traits: Traits{
				Name: "postgres-lease", Fencing: Durable, FIFO: true, Grace: true, MinHold: true,
				DeadWaiter: 5 * time.Second, MinTTL: 100 * time.Millisecond, Resolution: time.Millisecond,
				Revoked: time.Second, Readers: true, Permits: MostPermits,
			},
			Import: module + "postgres",
		},
	}
}

// TraitsOf returns the traits of a backend of this library by name. It panics
// if there is none: a driver calls it with its own name.
func TraitsOf(name string) Traits {
	for _, e := range Catalog() {
		if e.Traits.Name == name {
			return e.Traits
		}
	}
	panic("backend: no traits of " + name + " in the catalog")
}
