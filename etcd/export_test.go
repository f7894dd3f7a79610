package etcd

// Watches is how many queues a driver watches, for the tests of package etcd_test.
func (d *Driver) Watches() int {
	d.store.hubs.mu.Lock()
	defer d.store.hubs.mu.Unlock()
	return len(d.store.hubs.byQueue)
}

// TooOld is the error of a version.
func TooOld(version string) error { return tooOld(version) }
