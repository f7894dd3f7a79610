// Package measure has what the exporters of metrics share, so that they say the same: how names become a bounded
// number of resources, the words for outcomes, the search for leaked locks, and the watch on the wall clock.
package measure
