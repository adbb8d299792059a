package node

import (
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// API is what clients may ask of a node, for package serve: it implements serve.Backend. Make it
// with Node.API.
type API struct {
	launcher
	steps
	machine
}

// API returns the node's side of the API. Which client may do what is decided by its caller.
func (n *Node) API() API { return API{launcher{n}, steps{n}, machine{n}} }

// launcher makes steps and jobs; it decides for which user (run.go, reserve.go, launch.go,
// alloc.go, extern.go).
type launcher struct{ *Node }

// steps are the steps that a node knows, and what is asked of them (steps.go, control.go).
type steps struct{ *Node }

// machine is the node as a whole (status.go).
type machine struct{ *Node }

// backlog is how many connections may wait to be accepted: a burst of clients.
const backlog = 1024

// bindIn binds a listening unix socket of type typ as name in dir, mode 0666:
// peer credentials decide about a client, not the file. The path goes
// through dir's descriptor, because sun_path holds 108 bytes. A
// file of that name, left by an earlier noded, is replaced.
func bindIn(dir, name string, typ int) (*os.File, error) {
	path := filepath.Join(dir, name)
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open directory %q: %w", dir, err)
	}
	defer unix.Close(d)
	if err := unix.Unlinkat(d, name, 0); err != nil && err != unix.ENOENT {
		return nil, fmt.Errorf("cannot remove %q: %w", path, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot create socket %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := bindListen(d, fd, name); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot listen on %q: %w", path, err)
	}
	return f, nil
}

func bindListen(dir, fd int, name string) error {
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir, name)}); err != nil {
		return err
	}
	// Before listen: no client connects while the mode is the umask's.
	if err := unix.Fchmodat(dir, name, 0o666, 0); err != nil {
		return err
	}
	return unix.Listen(fd, backlog)
}

// Listen binds noded's socket under a name that no client knows. Publish gives
// it its own name, when requests are served.
func (n *Node) Listen() (net.Listener, error) {
	f, err := bindIn(n.spool.Run, hiddenSocket, unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer f.Close() // FileListener has its own descriptor
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", f.Name(), err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // its name is a descriptor's
	return l, nil
}

const hiddenSocket = ".noded.sock.new"

// Publish makes the socket appear, in one step.
func (n *Node) Publish() error {
	if err := os.Rename(filepath.Join(n.spool.Run, hiddenSocket), n.spool.Socket()); err != nil {
		return fmt.Errorf("cannot publish socket: %w", err)
	}
	return nil
}

// Serving says that requests are served: until then NotReady says that noded starts.
// The program that serves the node calls it once, behind Publish or with a socket that
// exists already.
func (n *Node) Serving() { n.serving.Store(true) }
