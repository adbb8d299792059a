package task

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"stepd/step"
	"stepd/step/launch"
)

func TestNiceOf(t *testing.T) {
	for name, c := range map[string]struct {
		mode      int
		uid       uint32
		env       []string
		own, nice int
	}{
		"as the client":               {prioOn, 7, []string{"SLURM_PRIO_PROCESS=5"}, 0, 5},
		"as the client, nothing said": {prioOn, 7, nil, 0, 0},
		"the last counts":             {prioOn, 7, []string{"SLURM_PRIO_PROCESS=5", "SLURM_PRIO_PROCESS=6"}, 0, 6},
		"before the daemons":          {prioOn, 7, []string{"SLURM_PRIO_PROCESS=-5"}, 0, 0},
		"before the daemons, root":    {prioOn, 0, []string{"SLURM_PRIO_PROCESS=-5"}, 0, -5},
		"below all":                   {prioOn, 0, []string{"SLURM_PRIO_PROCESS=-500"}, 0, -20},
		"above all":                   {prioOn, 7, []string{"SLURM_PRIO_PROCESS=500"}, 0, 19},
		"no number":                   {prioOn, 7, []string{"SLURM_PRIO_PROCESS=x"}, 0, 0},
		"nicer":                       {prioNicer, 7, []string{"SLURM_PRIO_PROCESS=0"}, 0, 1},
		"nicer, root":                 {prioNicer, 0, []string{"SLURM_PRIO_PROCESS=-5"}, -3, -2},
		"nicer, and the client more":  {prioNicer, 7, []string{"SLURM_PRIO_PROCESS=9"}, 3, 9},
		"nicer than 19":               {prioNicer, 7, nil, 19, 19},
	} {
		s := &step.Spec{User: step.User{UID: c.uid}, Site: step.Site{PropagatePrio: c.mode}}
		s.Env = c.env
		if got := niceOf(s, c.own); got != c.nice {
			t.Errorf("%s: %d, want %d", name, got, c.nice)
		}
	}
}

// childHost is a plugins' host with the pid of a child of the test.
type childHost struct {
	fakeHost
	pid int
}

func (h childHost) PID() int { return h.pid }

// logAudience keeps what the administrator is told.
type logAudience struct {
	fakeAudience
	lines []string
}

func (a *logAudience) Log(_ launch.LogLevel, text string) { a.lines = append(a.lines, text) }

// refuse makes a system call of the calling thread fail with EPERM, for ever.
func refuse(call uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: call},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
}

// TestPriorityUnknown: where stepd's own nice value cannot be read, that is said and the
// tasks keep it.
func TestPriorityUnknown(t *testing.T) {
	child := exec.Command("sleep", "100")
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer child.Process.Kill()
	was, err := unix.Getpriority(unix.PRIO_PROCESS, child.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	a := &logAudience{}
	plan := &Plan{Spec: &step.Spec{User: step.User{UID: 7}, Site: step.Site{PropagatePrio: prioNicer}}}
	l := startup{Step: &Step{
		plan: plan, host: &hostProcess{Host: childHost{pid: child.Process.Pid}}, messages: &messages{plan: plan, audience: a},
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this function
		if err := refuse(unix.SYS_GETPRIORITY); err != nil {
			t.Error(err)
			return
		}
		l.setPriority()
	}()
	<-done
	if now, err := unix.Getpriority(unix.PRIO_PROCESS, child.Process.Pid); err != nil || now != was {
		t.Errorf("the nice value is %d now, and was %d (%v)", 20-now, 20-was, err)
	}
	if len(a.lines) != 1 || !strings.HasPrefix(a.lines[0], "cannot read stepd's nice value: operation not permitted") {
		t.Errorf("said %q", a.lines)
	}
}
