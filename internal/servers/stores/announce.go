package stores

import "net"

// Announce returns the address that a server should give to clients and peers instead of its own,
// which is addr. It is called once for each server before that server is started, so it may start a
// proxy in front of it: clients of a cluster or of sentinels connect to what they are told, and
// only so pass through the proxy. The host must be 127.0.0.1.
type Announce func(addr string) (string, error)

// announce asks for the server's public address.
func (s *Server) announce(a Announce) error {
	if a == nil {
		return nil
	}
	public, err := a(s.addr)
	s.public = public
	return err
}

// announced is the address by which clients and peers know the server.
func (s *Server) announced() string {
	if s.public != "" {
		return s.public
	}
	return s.addr
}

// portOf returns the port of an address that this package made or was given.
func portOf(addr string) string {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return port
}
