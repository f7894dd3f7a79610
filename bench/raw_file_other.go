//go:build !unix

package bench

// openRawFile returns nil: there is no flock(2) here.
func openRawFile(place) (raw, error) { return nil, nil }
