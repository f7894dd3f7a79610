package otel

// Holds returns how many spans of holds are open.
func (o *Observer) Holds() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.holds)
}
