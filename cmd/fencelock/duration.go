package main

import (
	"errors"
	"fmt"
	"time"
)

// duration is the value of a flag: a duration from least on.
type duration struct {
	d       time.Duration
	least   time.Duration
	forever bool // no bound; only --wait may say so
}

// String returns the value as the help shows it as the default.
func (v *duration) String() string {
	if v.forever {
		return "forever"
	}
	if v.d == 0 {
		return "0" // which the help does not show as a default
	}
	return v.d.String()
}

// Type names the value in the help.
func (v *duration) Type() string { return "duration" }

// Set takes a duration in Go's notation; 0 needs no unit.
func (v *duration) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("want a duration with its unit, such as 500ms, 30s or 5m")
	}
	if d < v.least {
		switch v.least {
		case 0:
			return errors.New("want 0 or more")
		case 1:
			return errors.New("want more than 0")
		default:
			return fmt.Errorf("want %v or more", v.least)
		}
	}
	v.d, v.forever = d, false
	return nil
}
