// Package tlsurl reads the keys about TLS of a backend's URL, the same ones for every store.
package tlsurl

import (
	"crypto/tls"
	"crypto/x509"
	"os"

	"github.com/fencelock/fencelock/backend"
)

// Config takes tls_ca, tls_cert, tls_key (PEM files), tls_server_name and tls_skip_verify from q.
// It returns nil when TLS is off; one of these keys is ErrInvalid then, and remedy says how it is
// switched on. Certificates are verified unless the URL says otherwise.
func Config(on bool, q *backend.Query, remedy string) (*tls.Config, error) {
	ca, cert, key := q.String("tls_ca", ""), q.String("tls_cert", ""), q.String("tls_key", "")
	name := q.String("tls_server_name", "")
	skip := q.Bool("tls_skip_verify", false)
	if !on {
		if ca != "" || cert != "" || key != "" || name != "" || skip {
			return nil, backend.Invalid("the URL has tls_… keys but no TLS: %s", remedy)
		}
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: name, InsecureSkipVerify: skip}
	if ca != "" {
		pem, err := os.ReadFile(ca)
		if err != nil {
			return nil, backend.Invalid("tls_ca: %v", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, backend.Invalid("tls_ca: %s has no PEM certificate", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, backend.Invalid("tls_cert and tls_key go together: one is missing")
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, backend.Invalid("tls_cert and tls_key: %v", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
