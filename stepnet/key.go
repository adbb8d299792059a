package stepnet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// NewKey makes the key of one end: the private half (PKCS #8, DER) for
// Spec.NetKey, and the SHA-256 of the public one for the Layout.
func NewKey() (key, hash []byte, err error) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err == nil {
		key, err = x509.MarshalPKCS8PrivateKey(k)
	}
	var pub []byte
	if err == nil {
		pub, err = x509.MarshalPKIXPublicKey(&k.PublicKey)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	sum := sha256.Sum256(pub)
	return key, sum[:], nil
}

// identity is a key with the certificate that TLS wants around it. What is in
// there beside the key is read by nobody.
func identity(der []byte) (tls.Certificate, error) {
	k, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot use the step's key: %w", err)
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return tls.Certificate{}, fmt.Errorf("cannot use the step's key: it is a %T, not ECDSA on P-256", k)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Unix(1<<33, 0)}
	cert, err := x509.CreateCertificate(rand.Reader, form, form, &key.PublicKey, key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot make the step's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{cert}, PrivateKey: key}, nil
}

// errKey refuses an end that has proved another key than it should.
var errKey = errors.New("it has no key of this step")

// peerHash is the hash of the key that the other end has proved.
func peerHash(s tls.ConnectionState) (hash [sha256.Size]byte, err error) {
	if len(s.PeerCertificates) == 0 {
		return hash, errKey
	}
	return sha256.Sum256(s.PeerCertificates[0].RawSubjectPublicKeyInfo), nil
}

// pinned is a TLS configuration that talks to whom allow allows, and to nobody
// else. TLS has the other end prove that it has the key of its certificate; the
// rest of the certificate is not looked at.
func pinned(id tls.Certificate, allow func(hash [sha256.Size]byte) bool) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id},
		ClientAuth: tls.RequireAnyClientCert, InsecureSkipVerify: true, SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			hash, err := peerHash(s)
			if err == nil && !allow(hash) {
				err = errKey
			}
			return err
		},
	}
}

// dialPause is the time between two attempts: nothing tells when somebody
// listens there.
const dialPause = 50 * time.Millisecond

// dial connects to an end with this key. It tries until ctx ends, or for
// refused where nobody listens.
func dial(ctx context.Context, addr string, id tls.Certificate, hash []byte, refused time.Duration) (*meteredConn, *tls.Conn, error) {
	if len(hash) != sha256.Size {
		return nil, nil, fmt.Errorf("its key in the layout has %d bytes, not %d", len(hash), sha256.Size)
	}
	conf := pinned(id, func(got [sha256.Size]byte) bool { return got == [sha256.Size]byte(hash) })
	giveUp := time.NewTimer(refused)
	defer giveUp.Stop()
	for {
		raw, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err == nil {
			giveUp.Reset(refused)
			m := &meteredConn{Conn: raw}
			t := tls.Client(m, conf)
			if err = t.HandshakeContext(ctx); err == nil {
				return m, t, nil
			}
			raw.Close()
			if errors.Is(err, errKey) {
				return nil, nil, err
			}
		}
		pause := time.NewTimer(dialPause)
		select {
		case <-pause.C:
		case <-giveUp.C:
			return nil, nil, err
		case <-ctx.Done():
			return nil, nil, errors.Join(context.Cause(ctx), err)
		}
	}
}
