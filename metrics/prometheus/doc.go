// Package prometheus exports what a Locker does as Prometheus metrics. A [Collector] is an Observer of the Locker and a
// collector of a registry:
//
//	metrics := lockmetrics.New(nil) // this package
//	prometheus.MustRegister(metrics) // that of client_golang, whose name is the same: import one under another
//	locks, err := fencelock.Open(ctx, url, fencelock.WithObserver(metrics))
//
// docs/operating.md says what each metric means; deploy has alert rules and a dashboard for them.
package prometheus
