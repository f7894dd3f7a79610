package config

import "github.com/fencelock/fencelock/backend"

// kept is a driver that several users have: the Close of one of them leaves it open.
type kept struct{ backend.Driver }

// Close does nothing: the router closes the driver.
func (kept) Close() error { return nil }

// keep returns d for a user who closes what it is given. What else d can do is kept too.
func keep(d backend.Driver) backend.Driver {
	gates, isGater := d.(backend.Gater)
	checks, isChecker := d.(backend.Checker)
	switch {
	case isGater && isChecker:
		return struct {
			kept
			backend.Gater
			backend.Checker
		}{kept{d}, gates, checks}
	case isGater:
		return struct {
			kept
			backend.Gater
		}{kept{d}, gates}
	case isChecker:
		return struct {
			kept
			backend.Checker
		}{kept{d}, checks}
	}
	return kept{d}
}
