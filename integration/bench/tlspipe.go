package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
)

// tlsEnd is one end of a pipe over TLS, the peer of a step of two nodes: "write"
// encrypts stdin to the connection that stdout is, "read" decrypts from stdin's to
// stdout. It does nothing else.
func tlsEnd(what string) error {
	file, to := os.Stdout, os.Stdin
	if what == "read" {
		file, to = os.Stdin, os.Stdout
	}
	raw, err := net.FileConn(file)
	if err != nil {
		return err
	}
	file.Close()
	buf := make([]byte, 64<<10)
	switch what {
	case "write":
		conn := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // it measures, and keeps nothing secret
		if _, err := io.CopyBuffer(conn, onlyReader{to}, buf); err != nil {
			return err
		}
		return conn.Close()
	case "read":
		conf, err := serverConfig()
		if err != nil {
			return err
		}
		_, err = io.CopyBuffer(onlyWriter{to}, tls.Server(raw, conf), buf)
		return err
	}
	return fmt.Errorf("no end of a pipe: %q", what)
}

// The files without their ways around the buffer.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

// serverConfig has a key of this moment, of the kind that noded --bootstrap-ca makes.
func serverConfig() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	of := &x509.Certificate{SerialNumber: big.NewInt(1)}
	cert, err := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}}, nil
}

// tcpPair is a connection over the loopback.
func tcpPair() (read, write *os.File, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	out, err := net.Dial("tcp", l.Addr().String()) // the backlog takes it
	if err != nil {
		return nil, nil, err
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	read, rerr := in.(*net.TCPConn).File()
	write, werr := out.(*net.TCPConn).File()
	return read, write, errors.Join(rerr, werr)
}
