package tlsurl

// ByName is the zk.HostProvider that gives ZooKeeper's client library one server after the other by their names: the
// library's own resolves them (zk 1.0.4), and a certificate names no address.
type ByName struct {
	servers []string
	next    int
}

// Init takes the servers.
func (h *ByName) Init(servers []string) error { h.servers = servers; return nil }

// Len is how many there are.
func (h *ByName) Len() int { return len(h.servers) }

// Connected does nothing.
func (h *ByName) Connected() {}

// Next returns the next server, and whether all were tried, after which the library pauses.
func (h *ByName) Next() (string, bool) {
	h.next++
	return h.servers[h.next%len(h.servers)], h.next > len(h.servers)
}
