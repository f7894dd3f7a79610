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
// That one call is every rule, with the faults of a network where the harness says how clients get
// there: Harness.Link is a faultproxy.Proxy before a server, several behind one Link before many,
// or a [CallLink] where there is no network. If a harness lacks something (a fault proxy, a look at
// the store, stopping the server, a second process), the rules that need it are excluded, and so are
// those that the backend's Traits rule out: each excluded rule is reported with the reason.
//
// Package history goes further, with a program of one's own: it records what several processes did
// under faults of any kind, and judges it, by sweeps and by a model of one fenced lock.
//
// The rules are themselves tested, here: for each there is a driver with one mistake that it
// catches, on a toy store. The patches in tests/mistakes do the same with the drivers of this library:
// each names the rules that must fail with it. The author of another driver does that by hand: break it
// in one place, and see which rule fails.
package conformance
