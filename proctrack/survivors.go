package proctrack

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runc/libcontainer/system"
	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

// Survivor is a process that SIGKILL has not ended.
type Survivor = step.Survivor

// SurvivorsError says which processes were left when the wait for their end
// was given up. Cause, the context's, is what errors.Is sees.
type SurvivorsError = launch.SurvivorsError

// survivorsShown bounds the error: a fork bomb may leave thousands.
const survivorsShown = 8

// describeMax bounds the look at all of them. Nothing of it touches the file
// system that they may wait for, but parts of /proc have locks that a process
// in exec holds.
const describeMax = 2 * time.Second

func newSurvivorsError(where string, pids []int, cause error) *SurvivorsError {
	e := &SurvivorsError{Where: where, Total: len(pids), Cause: cause}
	late := time.NewTimer(describeMax)
	defer late.Stop()
	for i := 0; i < min(len(pids), survivorsShown); i++ {
		told := make(chan Survivor, 1) // size 1: a late sender does not block
		go func() { told <- describe(pids[i]) }()
		select {
		case s := <-told:
			e.Survivors = append(e.Survivors, s)
		case <-late.C:
			for _, pid := range pids[i:min(len(pids), survivorsShown)] {
				e.Survivors = append(e.Survivors, glance(pid))
			}
			return e
		}
	}
	return e
}

// glance returns what costs no lock.
func glance(pid int) Survivor {
	s := Survivor{PID: pid, Comm: "?", Grade: step.GradeVanished}
	stat, err := system.Stat(pid)
	if err != nil {
		return s
	}
	s.Comm, s.Start, s.State, s.Grade = stat.Name, stat.StartTime, string(rune(stat.State)), step.GradeRunning
	switch stat.State {
	case system.Zombie, system.Dead:
		s.Grade = step.GradeZombie
	case 'D':
		s.Grade = step.GradeDisk
	case 'T':
		s.Grade = step.GradeStopped
	case 't':
		s.Grade = step.GradeTraced
	}
	return s
}

// describe returns what /proc has about a process that does not end. It reads what
// the kernel keeps itself, and never the process's memory, a path of the
// process's, or a file that it holds: all of these may wait as it does.
func describe(pid int) Survivor {
	s := glance(pid)
	if s.Grade == step.GradeVanished {
		return s
	}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status := parseStatus(readProc(dir, "status"))
	if w := string(readProc(dir, "wchan")); w != "0" {
		s.Wchan = strings.TrimSpace(w)
	}
	s.Stack = parseStack(readProc(dir, "stack"))
	s.Freezer = frozenBy(readProc(dir, "cgroup"))
	switch {
	case s.Freezer != "":
		s.Grade = step.GradeFrozen
	case s.Grade == step.GradeZombie:
		s.Holder = status.ppid
		if status.tracer != 0 {
			s.Holder = status.tracer // its parent gets the exit status after it
		}
	case status.tracer != 0 && s.Grade == step.GradeTraced:
		s.Holder = status.tracer
	case status.core:
		s.Grade = step.GradeCore
	}
	if s.Holder != 0 {
		s.HolderComm = glance(s.Holder).Comm
	}
	if s.Grade == step.GradeDisk {
		s.Syscall, s.Files, s.Mounts = waitsFor(dir, s.Wchan, s.Stack)
	}
	return s
}

// readProc is nil for what cannot be read: it is then not known.
func readProc(dir, name string) []byte {
	data, _ := os.ReadFile(filepath.Join(dir, name))
	return data
}

// procStatus are some lines of proc_pid_status(5).
type procStatus struct {
	ppid, tracer int
	core         bool
}

func parseStatus(data []byte) (s procStatus) {
	for line := range bytes.Lines(data) {
		key, value, _ := strings.Cut(strings.TrimSpace(string(line)), ":")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
		if err != nil || n < 0 {
			continue
		}
		switch key {
		case "PPid":
			s.ppid = int(n)
		case "TracerPid":
			s.tracer = int(n)
		case "CoreDumping":
			s.core = n == 1
		}
	}
	return s
}

// stackShown bounds the part of a kernel stack that is kept.
const stackShown = 6

// parseStack reads proc_pid_stack: "[<0>] func+0x1/0x2 [module]".
func parseStack(data []byte) (funcs []string) {
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		name, _, _ := strings.Cut(fields[1], "+")
		if funcs = append(funcs, name); len(funcs) == stackShown {
			break
		}
	}
	return funcs
}

// frozenBy returns the v1 freezer cgroup that keeps a process frozen, "" where
// none does. On v2 SIGKILL ends a frozen process all the same.
func frozenBy(membership []byte) string {
	path := placeIn(membership, true)
	if path == "" {
		return ""
	}
	for _, m := range parseMounts(readProc("/proc/self", "mountinfo"), mountinfo.FSTypeFilter("cgroup")) {
		if !slices.Contains(strings.Split(m.VFSOptions, ","), "freezer") || m.Root != "/" {
			continue
		}
		dir := filepath.Join(m.Mountpoint, path)
		if state := string(readProc(dir, "freezer.state")); strings.HasPrefix(state, "FROZEN") || strings.HasPrefix(state, "FREEZING") {
			return dir
		}
	}
	return ""
}

// parseMounts reads proc_pid_mountinfo(5); a file that cannot be read has no mounts.
func parseMounts(data []byte, filter mountinfo.FilterFunc) []*mountinfo.Info {
	mounts, _ := mountinfo.GetMountsFromReader(bytes.NewReader(data), filter)
	return mounts
}

// on returns the mount that a path lies on: the last of the longest points.
func on(path string, mounts []*mountinfo.Info) *mountinfo.Info {
	best := new(mountinfo.Info)
	for _, m := range mounts {
		if len(m.Mountpoint) >= len(best.Mountpoint) && (m.Mountpoint == "/" || path == m.Mountpoint || strings.HasPrefix(path, m.Mountpoint+"/")) {
			best = m
		}
	}
	return best
}

const (
	// fdsMax bounds the descriptors that are looked at, filesShown what is kept.
	fdsMax     = 1024
	filesShown = 8
)

// waitsFor finds what a process in uninterruptible sleep may wait for: the
// descriptor of its system call, what else it holds, and mounts of the kind that
// its kernel stack names.
func waitsFor(dir, wchan string, stack []string) (call string, files, suspects []step.HeldFile) {
	mounts := parseMounts(readProc(dir, "mountinfo"), nil)
	call, fd := parseSyscall(readProc(dir, "syscall"))
	kind := fsKind(append([]string{wchan}, stack...))
	var rest []step.HeldFile
	for _, f := range held(dir, mounts) {
		f.Waits = fd >= 0 && f.What == fmt.Sprintf("fd %d", fd)
		switch {
		case f.Waits:
			files = append(files, f)
		case kind != "" && strings.HasPrefix(f.FSType, kind):
			files = append(files, f)
		default:
			rest = append(rest, f)
		}
	}
	if len(files) == 0 && kind != "" {
		for _, m := range mounts {
			if strings.HasPrefix(m.FSType, kind) && m.FSType != "fusectl" && len(suspects) < filesShown {
				suspects = append(suspects, step.HeldFile{Path: m.Mountpoint, Mount: m.Mountpoint, FSType: m.FSType})
			}
		}
	}
	files = append(files, rest...)
	return call, files[:min(len(files), filesShown)], suspects
}

// held lists what the links of /proc/PID name: reading a link asks no file system.
func held(dir string, mounts []*mountinfo.Info) (files []step.HeldFile) {
	add := func(what, link string) {
		path, err := os.Readlink(filepath.Join(dir, link))
		if err != nil || !strings.HasPrefix(path, "/") {
			return // a pipe or socket
		}
		m := on(path, mounts)
		files = append(files, step.HeldFile{What: what, Path: path, Mount: m.Mountpoint, FSType: m.FSType})
	}
	fds, err := os.Open(filepath.Join(dir, "fd"))
	if err == nil {
		names, _ := fds.Readdirnames(fdsMax) // what was read counts
		fds.Close()
		slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) })
		for _, name := range names {
			add("fd "+name, filepath.Join("fd", name))
		}
	}
	add("cwd", "cwd")
	add("exe", "exe")
	return files
}

// fdCalls are the system calls whose first argument is the descriptor that they
// may wait for.
var fdCalls = map[uint64]string{
	unix.SYS_READ: "read", unix.SYS_WRITE: "write", unix.SYS_PREAD64: "pread64", unix.SYS_PWRITE64: "pwrite64",
	unix.SYS_READV: "readv", unix.SYS_WRITEV: "writev", unix.SYS_FSTAT: "fstat", unix.SYS_NEWFSTATAT: "fstatat", unix.SYS_OPENAT: "openat",
	unix.SYS_GETDENTS64: "getdents64", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_LSEEK: "lseek", unix.SYS_IOCTL: "ioctl", unix.SYS_FLOCK: "flock",
	unix.SYS_FCNTL: "fcntl", unix.SYS_FALLOCATE: "fallocate", unix.SYS_UNLINKAT: "unlinkat",
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_STATX: "statx",
}

// parseSyscall reads proc_pid_syscall: "0 0x3 0x7f… sp pc", or "running". fd is
// -1 where the call has none, or the working directory's.
func parseSyscall(data []byte) (call string, fd int) {
	f := strings.Fields(string(data))
	if len(f) < 2 {
		return "", -1
	}
	n, err := strconv.ParseUint(f[0], 10, 32)
	if err != nil {
		return "", -1 // "-1": it is in no system call
	}
	call, ok := fdCalls[n]
	if !ok {
		return "", -1
	}
	arg, err := strconv.ParseUint(strings.TrimPrefix(f[1], "0x"), 16, 64)
	if err != nil || int32(arg) < 0 { // AT_FDCWD
		return call, -1
	}
	return call, int(int32(arg))
}

// fsKind is the beginning of a file system's type, derived from the names of
// kernel functions; "" where they name none.
func fsKind(funcs []string) string {
	for _, f := range funcs {
		for _, k := range []struct{ prefix, kind string }{
			{"fuse_", "fuse"}, {"__fuse", "fuse"}, {"request_wait_answer", "fuse"},
			{"nfs", "nfs"}, {"rpc_", "nfs"}, {"__rpc", "nfs"}, {"cifs_", "cifs"}, {"smb2_", "cifs"},
			{"ceph_", "ceph"}, {"ptlrpc", "lustre"}, {"ldlm_", "lustre"}, {"cl_", "lustre"}, {"ll_", "lustre"},
			{"gfs2_", "gfs2"}, {"p9_", "9p"}, {"v9fs_", "9p"}, {"afs_", "afs"}, {"xfs_", "xfs"}, {"ext4_", "ext4"},
			{"jbd2_", "ext4"}, {"btrfs_", "btrfs"},
		} {
			if strings.HasPrefix(f, k.prefix) {
				return k.kind
			}
		}
	}
	return ""
}
