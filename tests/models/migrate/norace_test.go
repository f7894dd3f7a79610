//go:build !race

package migrate

const raceDetector = false
