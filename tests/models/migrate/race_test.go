//go:build race

package migrate

const raceDetector = true
