package measure

// The boundaries of the histograms, in seconds.
var (
	WaitBuckets   = []float64{.001, .005, .01, .05, .1, .5, 1, 5}
	HoldBuckets   = []float64{.01, .1, .5, 1, 5, 15, 30, 60, 300, 900, 3600}
	MarginBuckets = []float64{-60, -10, -1, 0, .01, .02, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)
