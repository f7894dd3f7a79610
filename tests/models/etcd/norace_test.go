//go:build !race

package etcd

const raceDetector = false
