//go:build race

package etcd

const raceDetector = true
