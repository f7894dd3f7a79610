// Package otel exports what a Locker does through OpenTelemetry: spans for Lock, TryLock, Unlock
// and the hold between them, and the metrics of package prometheus under OpenTelemetry's names. An
// [Observer] is given to the Locker:
//
//	o, err := otel.New(nil) // the global providers
//	…
//	l, err := fencelock.Open(ctx, url, fencelock.WithObserver(o))
//
// It imports the API of OpenTelemetry only; the program brings the SDK.
//
// The spans are "lock", "trylock" and "unlock", children of the span in the caller's context, and
// "hold", their sibling from the grant until the lease is released or lost, with a link to the span
// that acquired it. Spans of the store's client become children of "lock", "trylock" and "unlock".
// Their attributes are lock.name, lock.backend, lock.owner, lock.resource, lock.mode, lock.token once there is
// one, lock.outcome (how a call ended), and for a lost hold lock.loss and lock.margin_seconds.
// Errors are recorded and set the span's status, but for a TryLock that was told that the lock is
// held: that is an answer.
//
// docs/operating.md lists the metrics.
package otel
