package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

func TestMachineProcesses(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		pids, threads string
		want          uint64
	}{{"32768\n", "192730\n", 32768}, {"4194304\n", "7000\n", 7000}, {"none", "7000", 0}, {"-1", "7000", 0}, {"7", "", 0}} {
		write("pid_max", c.pids)
		write("threads-max", c.threads)
		got, err := MachineProcesses(dir)
		if got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q and %q: %d, %v; want %d", c.pids, c.threads, got, err, c.want)
		}
	}
	if _, err := MachineProcesses(filepath.Join(dir, "none")); err == nil {
		t.Error("no error without the files")
	}
}

func TestRefused(t *testing.T) {
	for events, want := range map[string]uint64{"max 0\n": 0, "max 17\n": 17, "": 0, "other 3\nmax 2\n": 2, "max x\n": 0} {
		if got := refused([]byte(events)); got != want {
			t.Errorf("%q: %d, want %d", events, got, want)
		}
	}
}
