package jobcontainer

import (
	"bufio"
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
	"stepd/internal/printable"
	"stepd/step/launch"
)

// spaces are the namespaces of job_container/linux beside the mount namespace.
type spaces struct {
	pid, user *os.File // nil where there is none
	keeper    *keeper  // nil without a pid namespace
}

// makeSpaces makes and pins what the configuration asks for. What is pinned stays
// after an error, for clear; no process does.
func (t *Tmpfs) makeSpaces(dir *os.File, job uint32) (_ *spaces, err error) {
	s := &spaces{}
	defer func() {
		if err != nil {
			s.drop()
		}
	}()
	if t.cfg.UserNamespace {
		if s.user, err = makeUserNS(t.cfg.Keeper); err != nil {
			return nil, fmt.Errorf("cannot make a user namespace for job %d: %w", job, err)
		}
		if err := pin(dir, userName, s.user); err != nil {
			return nil, fmt.Errorf("cannot pin the user namespace of job %d: %w", job, err)
		}
	}
	if err := t.hook("user"); err != nil {
		return nil, err
	}
	if !t.cfg.PIDNamespace {
		return s, nil
	}
	if s.keeper, err = startKeeper(&t.cfg, job); err != nil {
		return nil, err
	}
	if s.pid, err = os.Open(fmt.Sprintf("/proc/%d/ns/pid", s.keeper.pid)); err == nil {
		err = pin(dir, pidName, s.pid)
	}
	if err == nil {
		err = writeSmall(dir, keeperName, fmt.Sprintf("%d\n", s.keeper.pid))
	}
	if err != nil {
		return nil, fmt.Errorf("cannot pin the pid namespace of job %d: %w", job, err)
	}
	return s, t.hook("pid")
}

// commit lets the namespaces outlive noded.
func (s *spaces) commit() error {
	if s.keeper == nil {
		return nil
	}
	s.keeper.proc.Close() // mounted by now
	s.keeper.proc = nil
	return s.keeper.stay()
}

// drop forgets spaces that were not committed.
func (s *spaces) drop() {
	if s.keeper != nil {
		s.keeper.drop()
	}
	s.close()
}

// close closes the files. A keeper that stays is not touched.
func (s *spaces) close() {
	for _, f := range []*os.File{s.pid, s.user} {
		if f != nil {
			f.Close()
		}
	}
}

// openSpaces opens what is pinned in dir, and finds the keeper again.
func openSpaces(dir *os.File) (*spaces, error) {
	s := &spaces{}
	for _, p := range []struct {
		name string
		kind int
		at   **os.File
	}{{pidName, unix.CLONE_NEWPID, &s.pid}, {userName, unix.CLONE_NEWUSER, &s.user}} {
		f, err := openPin(dir, p.name, p.kind)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			s.close()
			return nil, err
		}
		*p.at = f
	}
	if s.pid != nil {
		s.keeper = findKeeper(dir, s.pid)
	}
	return s, nil
}

// usable says why nothing can be started in the spaces.
func (s *spaces) usable() error {
	if s.pid != nil && (s.keeper == nil || !s.keeper.alive()) {
		return launch.ErrInitGone
	}
	return nil
}

// killMax is how long the end of a pid namespace is waited for. Its processes were
// ended before, except processes that sleep in the kernel.
const killMax = 2 * time.Second

// errLingers is the cause where the time was not enough.
var errLingers = errors.New("still there after SIGKILL")

// endSpaces kills what keeps the pid namespace pinned in dir.
func (t *Tmpfs) endSpaces(ctx context.Context, dir *os.File) error {
	s, err := openSpaces(dir)
	if err != nil {
		return err
	}
	defer s.close()
	if s.keeper == nil {
		return nil
	}
	defer s.keeper.close()
	wait := t.killMax
	if end, ok := ctx.Deadline(); ok { // the rest is for the directories
		wait = min(wait, time.Until(end)/2)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, wait, errLingers)
	defer cancel()
	return s.keeper.kill(ctx)
}

// makeUserNS returns a user namespace in which every id is what it is outside. A
// process of one thread has to make it; it ends at once.
func makeUserNS(program string) (*os.File, error) {
	ids, err := idMap("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	groups, err := idMap("/proc/self/gid_map")
	if err != nil {
		return nil, err
	}
	var words tail
	cmd := exec.Command(program, "--keep")
	cmd.Dir, cmd.Env, cmd.Stderr = "/", []string{}, &words
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Cloneflags: unix.CLONE_NEWUSER,
		UidMappings: ids, GidMappings: groups, GidMappingsEnableSetgroups: true,
	}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot run %q: %w", program, err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid))
	stdin.Close()
	if werr := cmd.Wait(); werr != nil {
		err = printable.JoinErrors(err, fmt.Errorf("%q: %w%s", program, werr, words.quoted()))
	}
	if err != nil && ns != nil {
		ns.Close()
		ns = nil
	}
	return ns, err
}

// idMap is the identity over all ids that this process's own namespace has.
func idMap(path string) ([]syscall.SysProcIDMap, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []syscall.SysProcIDMap
	for sc := bufio.NewScanner(f); sc.Scan(); {
		var inside, outside, n int
		if _, err := fmt.Sscan(strings.TrimSpace(sc.Text()), &inside, &outside, &n); err != nil {
			return nil, fmt.Errorf("cannot parse %q of %q: %w", sc.Text(), path, err)
		}
		out = append(out, syscall.SysProcIDMap{ContainerID: inside, HostID: inside, Size: n})
	}
	return out, nil
}

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

// alive reports whether the namespace can take processes still. A process 1 that was killed ends
// after all others in there, and before that it kills them.
func (k *keeper) alive() bool {
	ending := linux.IsExiting(k.pid)
	exited, err := linux.PidfdExited(k.pidfd) // else the number is its own still
	return err == nil && !exited && !ending
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
