// Package faultproxy is a TCP proxy between clients and one address of a store that injects the
// faults of a network: it refuses, cuts, silences, delays, holds replies and delivers them late,
// and loses the reply to a request that was done.
//
//	p, err := faultproxy.New(storeAddr)
//	…
//	defer p.Close()
//	client := connect(p.Addr())
//	p.Set(faultproxy.Mode{HoldReplies: true})
//	go client.Do(…)                                    // the store does it, the client does not learn of it
//	p.Await(ctx, func(c faultproxy.Counts) bool { return c.HeldReplies > 0 })
//	p.Set(faultproxy.Mode{})                           // now it does, late
//
// A chunk is what one read from a connection returned. On the loopback device that is what the
// other side wrote at once, if it is at most 64 KiB and the next write comes after it was read: a
// request of a client that waits for its reply is one chunk, so that chunks count round trips. The
// proxy knows no protocol.
//
// It stands between a client and the store only: a TCP reset it makes is real, a lost packet is not. Data that a client
// has sent before it dies is delivered when a hold ends, as a network would.
//
// It needs the standard library only and is short on purpose: a fault that a proxy gets wrong is a
// bug that no test finds.
package faultproxy

import "github.com/fencelock/fencelock/internal/faultproxy"

// Proxy stands between clients and one address. Its methods are those of conformance.Link, and Addr, the address for
// clients; Target, the store's; ResetCounts, Await and LoseReplyTo.
type Proxy = faultproxy.Proxy

// Mode is what a proxy does to what passes; the zero Mode passes everything on. Its fields are Refuse (new connections
// are reset, open ones live on), HoldRequests and HoldReplies (clients see silence; what is held comes when the hold
// ends), and Delay and Jitter, which are durations, each way.
type Mode = faultproxy.Mode

// Counts are what a proxy has seen: Requests, Replies, their bytes, LostReplies, HeldRequests and HeldReplies now,
// connections Open, Opened and Refused.
type Counts = faultproxy.Counts

// Dial connects to the address behind a proxy.
type Dial = faultproxy.Dial

// BlackHole holds both directions without a reset: connections stay open, new ones are accepted, nothing comes through.
var BlackHole = faultproxy.BlackHole

// The ways to make a proxy: on a free port of the loopback address, on an address, on a listener.
var (
	New   = faultproxy.New
	NewAt = faultproxy.NewAt
	NewOn = faultproxy.NewOn
)
