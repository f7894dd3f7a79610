package stores

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is a certificate authority made for one server, with the files that server needs.
type authority struct {
	caFile, certFile, keyFile string
	client                    *tls.Config // trusts the authority
}

// newAuthority makes an authority and a server certificate for 127.0.0.1 and localhost in dir, valid for a day.
func newAuthority(dir string) (*authority, error) {
	ca, caKey, caDER, err := certificate(&x509.Certificate{
		Subject:               pkix.Name{CommonName: "fencelock test authority"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	_, key, der, err := certificate(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "localhost"},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, caKey)
	if err != nil {
		return nil, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	a := &authority{
		caFile:   filepath.Join(dir, "ca.pem"),
		certFile: filepath.Join(dir, "server.pem"),
		keyFile:  filepath.Join(dir, "server.key"),
	}
	for _, f := range []struct {
		name, kind string
		der        []byte
	}{{a.caFile, "CERTIFICATE", caDER}, {a.certFile, "CERTIFICATE", der}, {a.keyFile, "PRIVATE KEY", keyDER}} {
		b := pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})
		// The key is for tests only, and a server in a container reads it as another user.
		if err := os.WriteFile(f.name, b, 0o644); err != nil {
			return nil, err
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	a.client = &tls.Config{RootCAs: pool, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	return a, nil
}

// certificate completes t and signs it with the parent's key, or with its own without a parent.
func certificate(
	t, parent *x509.Certificate, parentKey *ecdsa.PrivateKey,
) (*x509.Certificate, *ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, nil, nil, err
	}
	// An hour back, for servers whose clock is moved by a test.
	t.NotBefore = time.Now().Add(-time.Hour)
	t.NotAfter = time.Now().Add(24 * time.Hour)
	if parent == nil {
		parent, parentKey = t, key
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, nil, nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return cert, key, der, err
}

// copyTo returns the same authority with its files in another folder.
func (a *authority) copyTo(dir string) (*authority, error) {
	copied := *a
	for _, name := range []*string{&copied.caFile, &copied.certFile, &copied.keyFile} {
		b, err := os.ReadFile(*name)
		if err != nil {
			return nil, err
		}
		*name = filepath.Join(dir, filepath.Base(*name))
		if err := os.WriteFile(*name, b, 0o644); err != nil {
			return nil, err
		}
	}
	return &copied, nil
}
