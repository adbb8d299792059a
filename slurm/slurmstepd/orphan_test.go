package slurmstepd

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"stepd/internal/linux"
	"stepd/slurm/wire"
	"stepd/step"
)

// Without cgroups the orphan finds the step by the session that slurmd has given to its daemon,
// whose leader is dead (slurmd forks twice).
func TestOrphanWithoutCgroups(t *testing.T) {
	cmd := exec.Command("sh", "-c", `sleep 1000 & echo $!; (sleep 1000 & echo $!; wait) & exit 0`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	started, err := linux.StartTime(os.Getpid()) // before the step
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids [2]int
	in := bufio.NewReader(out)
	for i := range pids {
		if _, err := fmt.Fscanln(in, &pids[i]); err != nil {
			t.Fatal(err)
		}
		defer syscall.Kill(pids[i], syscall.SIGKILL)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	o := &orphan{will: will{Session: cmd.Process.Pid, Started: started}}
	if err := o.kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		fd, err := linux.PidfdOpen(pid)
		if linux.IsGone(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if ended, err := linux.PidfdExited(fd); !ended || err != nil {
			t.Errorf("process %d lives on, %v", pid, err)
		}
		syscall.Close(fd)
	}
}

// What is left goes, and what is another step's stays.
func TestOrphanClean(t *testing.T) {
	dir := t.TempDir()
	job := filepath.Join(dir, "job00012")
	for _, path := range []string{filepath.Join(dir, "n1_12.0"), filepath.Join(job, "slurm_script"), filepath.Join(job, "other")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	logged := 0
	log := logrus.New()
	log.SetOutput(writer(func(b []byte) (int, error) { logged++; return len(b), nil }))
	o := &orphan{log: log, will: will{Remove: []string{filepath.Join(dir, "n1_12.0"), filepath.Join(job, "slurm_script"), job, filepath.Join(dir, "gone")}}}
	o.clean()
	left, err := filepath.Glob(dir + "/*/*")
	if err != nil || len(left) != 1 || filepath.Base(left[0]) != "other" || logged != 0 {
		t.Errorf("left %q, %d lines logged, %v", left, logged, err)
	}
	if err := os.Remove(left[0]); err != nil {
		t.Fatal(err)
	}
	o.clean()
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// TestOrphanEnds: srun is sent the ends that it does not know, with the status that the daemon has
// known, and slurmctld the worst of all.
func TestOrphanEnds(t *testing.T) {
	seven, segv := uint32(step.ExitedWith(7)), uint32(step.SignaledBy(syscall.SIGSEGV))|0x80
	for name, c := range map[string]struct {
		marks   []uint32
		ends    []wire.TaskExit
		verdict step.ExitStatus
	}{
		"nothing is known":   {[]uint32{0, 0}, []wire.TaskExit{{Status: 9, Ranks: []uint32{4, 5}}}, killed},
		"one has ended":      {[]uint32{rankEnded | seven, 0}, []wire.TaskExit{{Status: seven, Ranks: []uint32{4}}, {Status: 9, Ranks: []uint32{5}}}, killed},
		"all have ended":     {[]uint32{rankEnded, rankEnded | seven}, []wire.TaskExit{{Status: 0, Ranks: []uint32{4}}, {Status: seven, Ranks: []uint32{5}}}, step.ExitedWith(7)},
		"one is reported":    {[]uint32{rankEnded | rankReported | segv, rankEnded}, []wire.TaskExit{{Status: 0, Ranks: []uint32{5}}}, step.ExitStatus(segv)},
		"all are reported":   {[]uint32{rankEnded | rankReported, rankEnded | rankReported}, nil, 0},
		"reported as killed": {[]uint32{rankReported, rankReported}, nil, killed},
	} {
		o := &orphan{will: will{Ranks: []int{4, 5}}, mark: func(i int) uint32 { return c.marks[i-markRanks] }}
		var ends []wire.TaskExit
		for _, e := range o.ends() {
			ends = append(ends, *e)
		}
		if !reflect.DeepEqual(ends, c.ends) || o.verdict() != c.verdict {
			t.Errorf("%s: %+v and %d, want %+v and %d", name, ends, o.verdict(), c.ends, c.verdict)
		}
	}
}
