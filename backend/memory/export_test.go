package memory

// Size returns how many names and ended acquisitions the driver's store knows.
func Size(d *Driver) int {
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return len(d.store.locks) + len(d.store.past.how)
}
