//go:build race

package heirs

const raceDetector = true
