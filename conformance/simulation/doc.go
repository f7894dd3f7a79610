// Package simulation runs the engine over a simulated store, network and clock: several clients in one bubble of
// testing/synctest, each with a seeded random program, and oracles that look at every step. It is tests only.
//
// # What is simulated
//
// The store is sound, small, and knows the time exactly. Between it and each client is a network
// that delays a message by up to two TTLs, loses requests and replies, delivers twice and out of
// order, and is cut in either direction. The store is down at times, and comes back with its data
// or without. Operators break locks. Programs wait, try, give up, renew by hand, enter again, stop
// for longer than a TTL, forget to unlock, and close their Locker in the middle of it all. In
// bursts, several goroutines of a client take turns with one lock, which is passed on within the
// process. In every fourth world readers, writers and holders of permits share one more name.
//
// The store hangs at times: it takes requests in, applies them at once, late or never, and answers
// late or never. Observers block for up to 8 s, or panic, at any event.
//
// The fate of a message is drawn from the seed and from the message's content, never from the time at
// which it is sent, so it is the same in every run of a seed. The engine draws its random numbers from
// the nonces of its acquisitions, and these come from the seed: nearly every seed is the same run every
// time.
//
// # What is not
//
// A bubble cannot stop one process: in a pause, a client's program and network stand still, but the
// engine's timers go on. So a Done that closes late because its process was stopped does not happen
// here; rule D5 stops a real one. All clients and the store share one clock. Goroutines that are
// ready at the same instant run in any order: the plan makes no two ready at once, but the engine
// does, so a few seeds in a hundred take another course now and then.
package simulation
