package api

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

// echo answers with what it knows of its peer.
type echo struct {
	UnimplementedNodeServer
	peer chan Peer
}

func (e *echo) NodeStatus(ctx context.Context, _ *Empty) (*NodeStatusReply, error) {
	p, err := PeerOf(ctx)
	if err != nil {
		return nil, status.Error(codes.Unauthenticated, err.Error())
	}
	e.peer <- p
	return &NodeStatusReply{}, nil
}

// serve listens at a path beyond sun_path, which Dial must reach all the same.
func serve(t *testing.T, opts ...grpc.ServerOption) (socket string, e *echo) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 120))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	if err := unix.Chdir(dir); err != nil { // the test's own way round the limit
		t.Fatal(err)
	}
	defer unix.Chdir("/")
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: "s"}), unix.Listen(fd, 8)); err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	e = &echo{peer: make(chan Peer, 1)}
	s := grpc.NewServer(opts...)
	RegisterNodeServer(s, e)
	go s.Serve(l) // ends by Stop
	t.Cleanup(s.Stop)
	return filepath.Join(dir, "s"), e
}

func TestPeerCredentials(t *testing.T) {
	socket, e := serve(t, grpc.Creds(Credentials()))
	conn, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := NewNodeClient(conn).NodeStatus(t.Context(), &Empty{}); err != nil {
		t.Fatal(err)
	}
	p := <-e.peer
	if int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() || int(p.PID) != os.Getpid() || p.Root() != (os.Getuid() == 0) {
		t.Errorf("peer %+v", p)
	}
}

// TestNoCredentials: a server that was made without them assumes nobody.
func TestNoCredentials(t *testing.T) {
	socket, _ := serve(t, grpc.Creds(insecure.NewCredentials()))
	conn, err := Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := NewNodeClient(conn).NodeStatus(t.Context(), &Empty{}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("got %v", err)
	}
	if _, err := PeerOf(context.Background()); err == nil {
		t.Error("a peer without a call")
	}
}

// TestUnixOnly: there are no peer credentials of a TCP connection.
func TestUnixOnly(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if _, _, err := Credentials().ServerHandshake(a); err == nil || !strings.Contains(err.Error(), "unix socket") {
		t.Errorf("server: %v", err)
	}
	if _, _, err := Credentials().ClientHandshake(t.Context(), "", b); err == nil {
		t.Error("client: no error")
	}
}

func TestDialFails(t *testing.T) {
	dir := t.TempDir()
	for _, socket := range []string{filepath.Join(dir, "absent"), filepath.Join(dir, "no", "dir")} {
		conn, err := Dial(socket)
		if err != nil {
			t.Fatal(err)
		}
		_, err = NewNodeClient(conn).NodeStatus(t.Context(), &Empty{})
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), socket) || strings.Contains(err.Error(), "/proc/self") {
			t.Errorf("got %v, want UNAVAILABLE with %q", err, socket)
		}
		conn.Close()
	}
}

func TestRequestLimit(t *testing.T) {
	conn, err := Dial(filepath.Join(t.TempDir(), "absent"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = NewNodeClient(conn).Run(t.Context(), &RunRequest{Request: make([]byte, RequestMax)})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "limit is 16777216") {
		t.Errorf("got %v", err)
	}
}

// TestPeerProcess: a server can follow the process that called, whatever
// becomes of its number, as long as the call lasts.
func TestPeerProcess(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn, info, err := Credentials().ServerHandshake(server)
	if err != nil {
		t.Fatal(err)
	}
	p := info.(Peer)
	fd, err := p.OpenProcess()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, 0, nil, 0); err != nil || int(p.PID) != os.Getpid() {
		t.Errorf("pid %d: %v", p.PID, err)
	}
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x, %v", flags, err)
	}
	conn.Close()
	if _, err := p.OpenProcess(); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after the connection: %v", err)
	}
}
