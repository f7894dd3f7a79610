package memory

// Size returns how many names and ended acquisitions the driver's store knows.
func Size(d *Driver) int {
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.locks) + len(s.past)
}
