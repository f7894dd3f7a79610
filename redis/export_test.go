package redis

import "time"

// What the tests outside the package see of its inside.

// The hashes by which the scripts are called on the wire.
var (
	RunHash   = runScript.hash
	ShareHash = shareScript.hash
	RenewHash = renewScript.hash
)

// OursOf returns what the driver's keys of a lock begin with: "fl\0{tag}".
func OursOf(lock string) string { return keysOf(lock).ours() }

// OursOfFirst returns what keys in slot 0 begin with, where the gates are off a cluster.
func OursOfFirst() string { return ours(tags()[0]) }

// Idle makes a driver leave channels, and hubs, on which nobody waits after so long.
func Idle(d *Driver, after time.Duration) { d.store.hubs.Idle = after }
