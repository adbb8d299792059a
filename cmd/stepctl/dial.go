package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"stepd/api"
)

const defaultSocket = "/run/stepd/noded.sock"

// dialer finds noded.
type dialer struct {
	socket     string // --socket
	standalone bool   // --standalone
	private    *private
	plugins    *plugins // of the verb, where it has them
}

// path is the socket to use, and whether it was named.
func (d *dialer) path() (path string, named bool) {
	if d.socket != "" {
		return d.socket, true
	}
	if s := os.Getenv("NODED_SOCKET"); s != "" {
		return s, true
	}
	return defaultSocket, false
}

// client connects. It does not wait: a noded that is not there shows in the
// first call.
func (d *dialer) client() (api.NodeClient, error) {
	path, _ := d.path()
	if d.private != nil {
		path = d.private.socket
	}
	return clientAt(path)
}

func clientAt(path string) (api.NodeClient, error) {
	cc, err := grpc.NewClient("passthrough:///noded",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dialUnix(ctx, path) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(32<<20), grpc.MaxCallRecvMsgSize(256<<20)))
	if err != nil {
		return nil, fmt.Errorf("cannot connect to noded: %w", err)
	}
	return api.NewNodeClient(cc), nil
}

// dialUnix connects through the folder's descriptor: sun_path holds 108 bytes
// (rulings 27).
func dialUnix(ctx context.Context, path string) (net.Conn, error) {
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to noded at %q: %w", path, err)
	}
	defer unix.Close(dir)
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
	if err != nil {
		if errno, ok := errors.AsType[syscall.Errno](err); ok {
			err = errno
		}
		return nil, fmt.Errorf("cannot connect to noded at %q: %w", path, err)
	}
	return c, nil
}

// orStandalone starts a private noded where that was asked for, or where root
// has named no socket and nobody serves the default one (rulings 29).
func (d *dialer) orStandalone() error {
	path, named := d.path()
	if !d.standalone {
		if named || os.Geteuid() != 0 {
			return nil
		}
		c, err := dialUnix(context.Background(), path)
		if err == nil {
			c.Close()
			return nil
		}
	}
	if os.Geteuid() != 0 {
		return errors.New("--standalone: only root may start a private noded")
	}
	p, err := startPrivate()
	d.private = p
	return err
}

// close ends what the dialer has started: the plugins' host and the private
// noded.
func (d *dialer) close() {
	d.plugins.close()
	if d.private != nil {
		d.private.stop()
		d.private = nil
	}
}

// private is a noded for the length of one command.
type private struct {
	cmd    *exec.Cmd
	dir    string
	socket string
}

func startPrivate() (*private, error) {
	prog, err := beside("noded", "../sbin")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "stepctl-standalone-")
	if err != nil {
		return nil, fmt.Errorf("cannot start a private noded: %w", err)
	}
	// The tasks' users must reach the sockets.
	if err := os.Chmod(dir, 0o755); err != nil {
		return nil, err
	}
	p := &private{dir: dir, socket: filepath.Join(dir, "run", "noded.sock")}
	args := []string{"--run-dir", filepath.Join(dir, "run"), "--spool-dir", filepath.Join(dir, "spool")}
	p.cmd = exec.Command(prog, args...)
	// A noded that outlives a killed stepctl would never be found again.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := p.cmd.StderrPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		os.RemoveAll(dir)
		return nil, fmt.Errorf("cannot start %q: %w", prog, err)
	}
	var said []string
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		if strings.Contains(sc.Text(), "noded: ready") {
			go io.Copy(io.Discard, stderr)
			return p, nil
		}
		said = append(said, sc.Text())
	}
	p.stop()
	return nil, fmt.Errorf("the private noded did not start: %s", strings.Join(said, "; "))
}

func (p *private) stop() {
	p.cmd.Process.Signal(unix.SIGTERM)
	p.cmd.Wait()
	os.RemoveAll(p.dir)
}

// beside finds one of our programs: beside this one, else in the folders that
// it is installed in; never by PATH (rulings 19).
func beside(name string, folders ...string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("cannot find %s: %w", name, err)
	}
	here := filepath.Dir(self)
	for _, dir := range append([]string{"."}, append(folders, "../libexec/stepd")...) {
		path := filepath.Join(here, dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find %s beside %q", name, self)
}

// callTimeout bounds calls that noded answers at once.
const callTimeout = 30 * time.Second
