package config

import "github.com/fencelock/fencelock/backend"

// kept is a driver that a migration shares with other users. The migration's Close leaves it open.
type kept struct{ backend.Mover }

// Close does nothing: the router closes the driver.
func (kept) Close() error { return nil }

// keep returns d for a migration, which closes its drivers. The migration refuses a driver that cannot take
// part, and leaves it open.
func keep(d backend.Driver) backend.Driver {
	if m, ok := d.(backend.Mover); ok {
		return kept{m}
	}
	return d
}
