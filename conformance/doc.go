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
// or a [CallLink] where there is no network. What a harness cannot do (a fault proxy, a look at the
// store, stopping the server, a second process) excludes the rules that need it, and so do the
// backend's Traits: each excluded rule is reported with the reason.
//
// Not in that call is what takes a program of one's own: package history records what several
// processes did under faults of any kind, and judges it, by sweeps and by a model of one fenced
// lock.
//
// The rules are themselves tested, here: for each there is a driver with one mistake that it
// catches, on a toy store. So are the drivers of this library, with the patches in mistakes, each
// of which names the rules that must fail with it. They are what the author of another driver does
// by hand: break it in one place, and see which rule says so.
package conformance
