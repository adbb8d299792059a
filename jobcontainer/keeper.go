package jobcontainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
)

const (
	// keeperName holds the number of the process that is 1 in the pid namespace.
	keeperName = "keeper"
	// keeperPatience bounds how long it takes to begin, on a node under load.
	keeperPatience = 30 * time.Second
)

// Place is where a process belongs that keeps a namespace of a job.
type Place struct {
	// Leaf is the cgroup that it is born in, which the user of Place closes; nil
	// where it cannot be.
	Leaf *os.File
	// Add is called with its number where there is no Leaf; nil does nothing.
	Add func(pid int) error
}

// keeper is process 1 of a job's pid namespace. It stays when noded ends.
type keeper struct {
	pid   int
	pidfd int
	// say is our end of its socket, nil once it was ordered to stay.
	say *os.File
	// proc is the /proc of the namespace, attached nowhere yet.
	proc *os.File
	// ended is closed when it was reaped; nil of an earlier noded's.
	ended chan struct{}
}

// startKeeper makes a pid namespace by its process 1. Until it is ordered to stay, it
// ends with us.
func startKeeper(cfg *Config, job uint32) (*keeper, error) {
	k, err := beginKeeper(cfg, job)
	if err != nil {
		return nil, fmt.Errorf("cannot make a pid namespace for job %d: %w", job, err)
	}
	return k, nil
}

func beginKeeper(cfg *Config, job uint32) (*keeper, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "keeper"), os.NewFile(uintptr(pair[1]), "noded")
	defer theirs.Close() // or before: twice does no harm
	k := &keeper{pidfd: -1, say: ours, ended: make(chan struct{})}
	var words tail
	cmd := exec.Command(cfg.Keeper, "--init")
	cmd.Args[0] = fmt.Sprintf("stepd-init: [%d] %s", job, cfg.RunDir)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stderr = "/", []string{}, theirs, &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID, PidFD: &k.pidfd}
	place, err := cfg.Place(job)
	if err != nil {
		ours.Close()
		return nil, err
	}
	if place.Leaf != nil {
		defer place.Leaf.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(place.Leaf.Fd())
	}
	if err := cmd.Start(); err != nil {
		ours.Close()
		return nil, fmt.Errorf("cannot run %q: %w", cfg.Keeper, err)
	}
	k.pid = cmd.Process.Pid
	theirs.Close() // its own end is then the socket's
	go func() {
		_ = cmd.Wait() // it is killed in the end: how it ended says nothing
		close(k.ended)
	}()
	if place.Leaf == nil && place.Add != nil {
		err = place.Add(k.pid)
	}
	if err == nil {
		err = k.receive()
	}
	if err != nil {
		k.drop()
		return nil, fmt.Errorf("%w%s", err, words.quoted())
	}
	return k, nil
}

// receive takes what the keeper sends when it has begun.
func (k *keeper) receive() error {
	_ = unix.SetsockoptTimeval(int(k.say.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(keeperPatience / time.Second)})
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(4))
	var n, oobn int
	err := linux.IgnoringEINTR(func() (err error) {
		n, oobn, _, _, err = unix.Recvmsg(int(k.say.Fd()), b[:], oob, unix.MSG_CMSG_CLOEXEC)
		return err
	})
	if err == nil && n == 0 {
		<-k.ended // with words on its standard error
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("its first process has not begun: %w", err)
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err == nil && len(msgs) == 1 {
		var fds []int
		if fds, err = unix.ParseUnixRights(&msgs[0]); err == nil && len(fds) == 1 {
			k.proc = os.NewFile(uintptr(fds[0]), "/proc")
			return nil
		}
	}
	return errors.Join(errors.New("its first process has sent no /proc"), err)
}

// stay lets the keeper outlive us.
func (k *keeper) stay() error {
	_, err := k.say.Write([]byte{1})
	err = errors.Join(err, k.say.Close())
	k.say = nil
	if err != nil {
		return fmt.Errorf("cannot tell process 1 of a pid namespace to stay: %w", err)
	}
	return nil
}

// drop ends a keeper that has not come to stay.
func (k *keeper) drop() {
	k.say.Close()
	if k.proc != nil {
		k.proc.Close()
	}
	_ = unix.PidfdSendSignal(k.pidfd, unix.SIGKILL, nil, 0)
	<-k.ended
	unix.Close(k.pidfd)
}

// alive reports whether the namespace can take processes still.
func (k *keeper) alive() bool {
	p := []unix.PollFd{{Fd: int32(k.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n == 0
}

// close forgets the keeper, which goes on.
func (k *keeper) close() { unix.Close(k.pidfd) }

// findKeeper finds the keeper by its number: it is process 1 in the namespace ns,
// which is pinned in dir. nil is none: it has ended, or never began.
func findKeeper(dir, ns *os.File) *keeper {
	text, err := readSmall(dir, keeperName)
	pid, perr := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || perr != nil || pid <= 1 {
		return nil
	}
	pidfd, err := linux.PidfdOpen(pid)
	if err != nil {
		return nil
	}
	// The number may be another process's by now, and even one of this namespace.
	theirs, err := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid))
	ours, oerr := ns.Stat()
	if err != nil || oerr != nil || !os.SameFile(theirs, ours) || innerPID(pid) != 1 {
		unix.Close(pidfd)
		return nil
	}
	return &keeper{pid: pid, pidfd: pidfd}
}

// innerPID is the number that a process has in its own pid namespace; 0 is not known.
func innerPID(pid int) int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			numbers := strings.Fields(rest)
			if len(numbers) == 0 {
				return 0
			}
			n, _ := strconv.Atoi(numbers[len(numbers)-1])
			return n
		}
	}
	return 0
}

// kill ends the namespace with all processes in it, and waits for that.
func (k *keeper) kill(ctx context.Context) error {
	if err := unix.PidfdSendSignal(k.pidfd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot kill process %d, which is 1 of a pid namespace: %w", k.pid, err)
	}
	// It ends after all others in there.
	if err := linux.PidfdWait(ctx, k.pidfd); err != nil {
		return fmt.Errorf("process %d, which is 1 of a pid namespace, does not end: %w", k.pid, err)
	}
	if k.ended != nil {
		<-k.ended
	}
	return nil
}
