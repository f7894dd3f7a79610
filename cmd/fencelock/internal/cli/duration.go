package cli

import (
	"errors"
	"fmt"
	"time"
)

// Duration is the value of a flag: a duration from Least on.
type Duration struct {
	D       time.Duration
	Least   time.Duration
	Forever bool // no bound; only --wait may say so
}

// String returns the value as the help shows it as the default.
func (v *Duration) String() string {
	switch {
	case v.Forever:
		return "forever"
	case v.D == 0:
		return "0" // which the help does not show as a default
	}
	return v.D.String()
}

// Type names the value in the help.
func (v *Duration) Type() string { return "duration" }

// Set takes a duration in Go's notation; 0 needs no unit.
func (v *Duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("want a duration with its unit, such as 500ms, 30s or 5m")
	case d < 0 && v.Least == 0:
		return errors.New("want 0 or more")
	case d <= 0 && v.Least == 1:
		return errors.New("want more than 0")
	case d < v.Least:
		return fmt.Errorf("want %v or more", v.Least)
	}
	v.D, v.Forever = d, false
	return nil
}
