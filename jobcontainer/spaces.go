package jobcontainer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"stepd/step"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
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

// errKeeperGone ends the use of a pid namespace: no process can be born in it.
var errKeeperGone = errors.New("process 1 of its pid namespace has ended: it was killed")

// usable says why nothing can be started in the spaces.
func (s *spaces) usable() error {
	if s.pid != nil && (s.keeper == nil || !s.keeper.alive()) {
		return errKeeperGone
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
		err = step.JoinErrors(err, fmt.Errorf("%q: %w%s", program, werr, words.quoted()))
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
