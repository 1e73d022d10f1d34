package interop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificate is a pair of PEM files.
type certificate struct{ cert, key string }

// pki holds the temporary certificates of a run: one CA for the agent port, one for the frontend.
type pki struct {
	clusterCA, frontCA       string
	clusterServer, agent     certificate
	frontServer, frontClient certificate
}

type authority struct {
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

func newPKI(folder string) (*pki, error) {
	cluster, err := newAuthority(folder, "cluster-ca")
	if err != nil {
		return nil, err
	}
	front, err := newAuthority(folder, "front-ca")
	if err != nil {
		return nil, err
	}
	p := &pki{clusterCA: filepath.Join(folder, "cluster-ca.crt"), frontCA: filepath.Join(folder, "front-ca.crt")}
	for _, wanted := range []struct {
		by     *authority
		name   string
		server bool
		into   *certificate
	}{
		{cluster, "cluster-server", true, &p.clusterServer},
		{cluster, "agent", false, &p.agent},
		{front, "front-server", true, &p.frontServer},
		{front, "front-client", false, &p.frontClient},
	} {
		if *wanted.into, err = wanted.by.issue(wanted.name, wanted.server); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func newAuthority(folder, name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := template(name)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{folder, cert, key}, writePEM(filepath.Join(folder, name+".crt"), "CERTIFICATE", der)
}

func (a *authority) issue(name string, server bool) (certificate, error) {
	files := certificate{filepath.Join(a.folder, name+".crt"), filepath.Join(a.folder, name+".key")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return files, err
	}
	template := template(name)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if server {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		template.DNSNames = []string{"localhost"}
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return files, err
	}
	encoded, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return files, err
	}
	if err := writePEM(files.cert, "CERTIFICATE", der); err != nil {
		return files, err
	}
	return files, writePEM(files.key, "EC PRIVATE KEY", encoded)
}

func template(name string) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(24 * time.Hour),
	}
}

func writePEM(path, kind string, der []byte) error {
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
