package config

import "github.com/fencelock/fencelock/backend"

// kept is a driver that several users have: the Close of one of them leaves it open.
type kept struct{ backend.Mover }

// Close does nothing: the router closes the driver.
func (kept) Close() error { return nil }

// keep returns d for a migration, which closes what it is given. One that cannot take part is
// refused there, and stays the caller's.
func keep(d backend.Driver) backend.Driver {
	if m, ok := d.(backend.Mover); ok {
		return kept{m}
	}
	return d
}
