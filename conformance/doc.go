// Package conformance holds a backend to its promises. It is a table of [Rule]s, each with the reason for it and a
// check, and [Run] and [Check], which check all of them against any driver through a [Harness]. The drivers of this
// library pass it. The author of another driver runs it with one call:
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
// The call checks every rule, with the faults of a network if Harness.Link is set: to a faultproxy.Proxy before a
// server, to several behind one Link before many servers, or to a [CallLink] where there is no network. If a harness
// lacks something (a fault proxy, a look at the store, stopping the server, a second process), the rules that need it
// are excluded. So are the rules that the backend's Traits rule out. Each excluded rule is reported with the reason.
//
// Package history goes further: it records the calls of several processes under faults of any kind, and judges them,
// by sweeps and by a model of one fenced lock.
//
// The rules are tested themselves. For each of them there is a driver with one mistake, which the rule finds: on a toy
// store here, and on the drivers of this library in tests/mistakes. The author of another driver breaks it in one place
// and sees which rule fails.
package conformance
