//go:build !race

package shared

const raceDetector = false
