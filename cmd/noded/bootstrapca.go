package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"stepd/slurmconf"
)

// labValid is how long the certificates of --bootstrap-ca are good for.
const labValid = 10 * 365 * 24 * time.Hour

// bootstrapCA makes a CA in dir, and for each node a certificate and a key: ca.pem,
// ca.key, NODE.pem, NODE.key. It is for a lab; a site with a CA uses that.
// lists are host lists. No file is replaced.
func bootstrapCA(dir string, lists []string) error {
	var nodes []string
	for _, list := range lists {
		names, err := slurmconf.ExpandHosts(list)
		if err != nil {
			return err
		}
		nodes = append(nodes, names...)
	}
	if len(nodes) == 0 {
		return errors.New("cannot make certificates: name the nodes: noded --bootstrap-ca DIR n[1-4]")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make certificates: %w", err)
	}
	// Before anything is written: half a set is of no use to anybody.
	for _, name := range nodes {
		if name != filepath.Base(name) || name == "ca" {
			return fmt.Errorf("cannot make a certificate for node %q: that is no name for a file of its own", name)
		}
	}
	for _, name := range append([]string{"ca"}, nodes...) {
		for _, suffix := range []string{".pem", ".key"} {
			if _, err := os.Lstat(filepath.Join(dir, name+suffix)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("cannot make certificates: %q exists: remove it, or name another directory", filepath.Join(dir, name+suffix))
			}
		}
	}
	now := time.Now()
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "stepd lab CA " + now.Format(time.DateOnly)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, MaxPathLenZero: true,
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(labValid),
	}
	caKey, err := makeCertificate(dir, "ca", ca, ca, nil)
	if err != nil {
		return err
	}
	for _, node := range nodes {
		cert := &x509.Certificate{
			Subject: pkix.Name{CommonName: node}, DNSNames: []string{node},
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
			NotBefore: now.Add(-time.Hour), NotAfter: now.Add(labValid),
		}
		if _, err := makeCertificate(dir, node, cert, ca, caKey); err != nil {
			return err
		}
	}
	return nil
}

// makeCertificate writes the certificate that template describes, and a key for it
// that it returns. Without a parent's key it is signed with its own.
func makeCertificate(dir, name string, template, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, error) {
	fail := func(err error) (*ecdsa.PrivateKey, error) {
		return nil, fmt.Errorf("cannot make a certificate for %q: %w", name, err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fail(err)
	}
	if parentKey == nil {
		parentKey = key
	}
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return fail(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return fail(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fail(err)
	}
	for _, f := range []struct {
		suffix, kind string
		der          []byte
	}{{".key", "PRIVATE KEY", secret}, {".pem", "CERTIFICATE", der}} {
		if err := writeNew(filepath.Join(dir, name+f.suffix), pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.der})); err != nil {
			return fail(err)
		}
	}
	return key, nil
}

// writeNew writes a file that must not be there, mode 0600.
func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}
