package etcd

// Watches is how many queues a driver watches, for the tests of package etcd_test.
func (d *Driver) Watches() int {
	d.hubs.mu.Lock()
	defer d.hubs.mu.Unlock()
	return len(d.hubs.byQueue)
}
