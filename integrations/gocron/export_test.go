package gocron

// Runs returns how many runs are remembered.
func (l *Locker) Runs() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.runs)
}
