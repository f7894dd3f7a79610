package raw

import (
	"crypto/tls"
	"net"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/servers"
)

// A server's certificate is asked for the name that the URL has: few have one for an address.
func TestZooKeeperByName(t *testing.T) {
	t.Parallel()
	z := servers.ZooKeeper(t, servers.ZooKeeperOptions{TLS: true})
	_, port, err := net.SplitHostPort(strings.TrimPrefix(z.SecureURL(), "zookeepers://"))
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan string, 1)
	secure := z.TLSConfig()
	secure.ServerName = ""
	secure.VerifyConnection = func(c tls.ConnectionState) error {
		select {
		case asked <- c.ServerName:
		default:
		}
		return nil
	}
	conn, err := ZooKeeperSession(t.Context(), []string{net.JoinHostPort("localhost", port)}, secure)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	if got := <-asked; got != "localhost" {
		t.Errorf("got a certificate for %q, want localhost", got)
	}
}
