// Package conformance holds a backend to what it promises: a table of [Rule]s,
// each with the reason for it and a check, and [Run] and [Check], which check them all against any
// driver through a [Harness]. The drivers of this library pass it; the author of another runs it with one
// call:
//
//	func TestMain(m *testing.M) { conformance.Child(); os.Exit(m.Run()) }
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, conformance.Harness{
//			Name:   "mystore",
//			Driver: func(ctx context.Context, c conformance.Client) (backend.Driver, error) { … },
//		})
//	}
//
// What a harness cannot do (a fault proxy, a look at the store, stopping the server, a second process) excludes
// the rules that need it, and so do the backend's Traits: each excluded rule is reported with the reason.
//
// The rules are themselves tested: for each there is a driver with one mistake that it catches.
package conformance
