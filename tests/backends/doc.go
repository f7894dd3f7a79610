// Package backends runs the conformance suite on every backend of this library,
// on real servers. It has tests only; their harnesses are examples for other drivers.
package backends
