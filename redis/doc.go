// Package redis is the Redis backend: a single server, a Sentinel group or a
// Cluster, through go-redis v9.
//
//	redis://[user:password@]host[:6379][/db]         rediss:// with TLS
//	redis+sentinel://s1[:26379],s2,s3/master[/db]    user and password are the data nodes'
//	redis+cluster://n1[:6379],n2,n3
//
// Keys of the URL: prefix, ttl; client_name, dial_timeout, read_timeout, pool_size, min_idle_conns;
// tls (on a cluster or Sentinel), tls_ca, tls_cert, tls_key, tls_server_name, tls_skip_verify;
// sentinel_username, sentinel_password. [New] takes a client that the program has.
//
// # What a lease is made of
//
// The lock is the key prefix+name, a string "nonce:token:owner" with an expiry, set only where
// there is none: so a program that uses the canonical SET key value NX PX on that key excludes us
// and is excluded. One Lua script acquires (token included), one releases: a round trip each. Every
// key of ours has a NUL byte, which no name has, and the hash tag of the lock's slot:
//
//	fl\0{tag}c          counter of the slot: the last token drawn
//	fl\0{tag}q<lock>    queue: nonce by ticket
//	fl\0{tag}m<lock>    its waiters: until when each counts as alive, its process, its last ask and the
//	                    gates that it was judged by then, its owner
//	fl\0{tag}h<lock>    the holds of readers or permits: until when each lasts
//	fl\0{tag}o<lock>    what else is known of them
//	fl\0{tag}x<nonce>   tombstone of an acquisition of which a copy may come yet: a request of it
//	                    went unanswered, even if another copy was answered. Or the mark that
//	                    its lock was taken away or released, for a release that is sent
//	                    again; or that of a Break, for a copy of it that comes late
//	fl\0{tag}g<prefix>  version of the keyspace's gates, if a migration has set any
//	fl\0{tag}g<prefix>\0  the gates: a hash, by migration
//	fl\0{tag}k<prefix>\0<migration>  what the migration's clients report of themselves; expires with the last of them
//
// A name that is neither held nor waited for leaves nothing but tombstones and marks, which expire.
// There is at most one counter for each of the 16,384 slots, however many names there are.
//
// Readers and permits hold the lock as a group. Its key is a marker, which a program of the plain
// recipe takes for a stranger's lock: "shared:r:era" of readers, with their token, or
// "shared:p:least" of permits, with the least limit. holds.lua describes the two keys beside it. All
// three expire with the hold that ends last; each hold ends by its own time, on the server's clock.
//
// Behind the owner, a NUL and a migration mark a holder in PhaseBoth. A NUL at the end of the value
// marks a claim that its waiter has not confirmed.
//
// # Gates
//
// The client judges a request by the gates that it knows and sends their version, a hash of all of
// them. The script that acquires compares that with the version in the store, in a read that it makes
// anyway. If they differ it grants nothing: it answers with the gates, and the client asks again. So
// gates cost a lock neither a request nor a command, whether its name moves or not; only the first
// lock after a change makes one request more.
//
// Off a cluster the gates are in the slot 0 that a cluster would have. On a cluster each slot has
// them, because a script sees only the keys of its slot: SetGate, Gates, Raise and Source go over all
// slots, a thousand in one pipeline, some tenths of a second in all. An interrupted change leaves the
// gate Torn: names of some slots are refused, and the next change mends it. No other program may
// write these keys: names of that keyspace are not granted then (ErrInvalid). A keyspace without the
// version has no gates.
//
// Undrained searches the whole keyspace with SCAN, and returns an error if a failover, a restart or
// the move of a slot made the search incomplete. It is exact about our own holders. A program that
// uses the plain recipe knows no gates: it shows while it holds a key, and can take one at any
// time. Raise writes a counter in each of the 16,384 slots, some 1.5 MB. Gates are as durable as
// the locks: a loss of the data opens the store, until a client in PhaseBoth finds the gate missing
// (Grant.Ungated).
//
// # Waiting
//
// A waiter subscribes to its process's channel, then joins the queue with its acquire. A release
// grants the lock in the same script to the first waiter whose process listens, and pushes to that
// process alone. Such a grant lasts for 2 s, and the holder renews it soon.
//
// The push names the ask by which the waiter stood in the queue. If that is the last ask that the
// server has answered, it was sent before the grant: so the waiter has the lock, asks nothing, and
// counts its Deadline from that ask (package tests/models/redis has the proof). Otherwise the grant
// is a claim, and the waiter has the lock when its acquire, sent again, is answered. So it is if the
// ask is older than a second, if the gates have changed since, if the waiter wants tokens for others
// of its process, and if the hold has a Grace, a floor or a bound, or is renewed by hand.
//
// A waiter looks again when the holder's key would expire, every 2 s at the latest (1 s while a
// program that knows no queue holds the key, or a group does), and after every re-subscription. A
// process that died is skipped at once, since nobody listens; a host that vanished costs 2 s. A waiter
// whose place in the queue is gone was dropped although it lives: its process's subscription is closed
// and opened anew, and it takes its place again.
//
// # Tokens
//
// Each grant's token is max(counter + 1, the server's clock in µs, floor + 1), computed in the
// script that grants. So tokens rise also after the data is lost or a stale replica is promoted, as
// long as the clock of the server that grants next is not behind the clock of the one that granted
// last by more than the time between the two grants. If a stale replica still shows readers, those
// that join them share their token until they have expired. Tokens reserved for other holders of the
// process move the counter at most 3 ms ahead of that clock. A floor more than an hour ahead of the
// clock and above the counter is ErrInvalid, because it would spend the numbers of other names.
//
// # Many goroutines
//
// A request is sent on the goroutine that asks. Once two are with the server, the requests of the
// next millisecond wait for one of the answers and go together: one call of one script, which reads
// all their keys at once and handles only contended names one by one. Under load most requests go
// so, and a lone caller pays nothing for it. Acquires that were judged by different gates go in calls
// of their own. The requests of a Cluster, and those with a deadline within 0.7 s, go alone.
//
// # What is not promised
//
// Mutual exclusion through a loss of the server's data: a restart without persistence or with
// appendfsync everysec, a failover to a replica that was behind, an eviction, FLUSHALL. The tokens
// still rise, so a resource that checks them stays safe. A server whose wall clock jumps expires keys
// early or late. Programs that use the plain recipe on the same key do not respect the queue.
//
// If no answer comes to a release, it is sent again, and is nil if the lock is gone without a mark.
// So Unlock can be nil although the key was lost since the holder's last look (with the server's
// data, or deleted by a program), if the first copy of the release was lost on its way.
//
// A server behind a proxy that spreads slots, such as Redis Enterprise, Envoy or twemproxy, does
// not serve a redis:// URL, because the gates of a keyspace are in slot 0 and its locks in others.
// Scripts use keys of the lock's slot that are not among their KEYS, which Dragonfly refuses by
// default.
//
// While a slot of a cluster moves to another node, acquires and releases of its locks are
// ErrUnavailable (TRYAGAIN). Held locks are renewed; shared ones are not while their three keys are
// on two nodes.
//
// # What the server needs
//
// Redis 6 or later, 7.0 for a cluster (sharded pub/sub). maxmemory-policy noeviction. With ACLs:
// the lock keys and ~fl*, the channels &fl*, and the commands EVAL, EVALSHA, GET, MGET, SET, DEL,
// EXISTS, PEXPIRE, PTTL, TIME, the Z and H commands of the scripts, SCAN, PUBLISH, PUBSUB,
// SUBSCRIBE (on a cluster SPUBLISH, SSUBSCRIBE, SUNSUBSCRIBE, ASKING, CLUSTER); in a store with
// gates also HGETALL, and INFO for Undrained. A holder looks every 0.6 s whether its key is still
// its own, many holds in one command, so a deleted key or a Break is noticed within a second.
//
// go-redis logs failed dials on standard error by itself; a program that does not want that calls
// its SetLogger. Once as many dials have failed as its pool has connections (pool_size, by default
// 10 for each processor), it dials once a second and gives every call the last error: so the store
// can be unavailable for up to a second longer than the server is down. An Unlock that gets no
// connection asks again for 1.5 s, and so bridges that.
//
// The driver takes no client of rueidis or valkey-go. Besides commands it needs a subscription that
// reports its end and what is confirmed, the master of a slot, every master by itself, a reload of
// the slots after MOVED, and commands that are sent once. The interface of rueidis 1.0.79 has neither
// a slot's master nor that reload. Such programs open the same servers by URL: the locks are the same.
package redis
