package etcd

// Watches is how many queues a driver watches, for the tests of package etcd_test.
func (d *Driver) Watches() int {
	d.store.push.mu.Lock()
	defer d.store.push.mu.Unlock()
	return len(d.store.push.watches)
}

// TooOld is the error of a version.
func TooOld(version string) error { return tooOld(version) }
