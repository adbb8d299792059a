package site

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"stepd/slurmconf"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestDoctorScreen: every judgement of the doctor's, as it is printed.
func TestDoctorScreen(t *testing.T) {
	const limits = `Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max processes             62987                3000                 processes
Max open files            1024                 20000                files
Max locked memory         67108864             67108864             bytes
`
	now := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	early := time.Date(1970, 1, 1, 0, 3, 0, 0, time.UTC)
	const good = "LoadState=loaded\nKillMode=process\nDelegate=yes\nType=notify\nNeedDaemonReload=no\n"
	var b bytes.Buffer
	for _, found := range [][]finding{
		judgeLimits(limits, "noded's"),
		judgeClock(now, now.Add(-time.Hour), true), judgeClock(now, now.Add(time.Hour), true), judgeClock(early, now, true),
		judgeClock(now, time.Time{}, false),
		judgeMemory(&machine{memory: 64 << 30}, 64<<30, 60000),
		judgeMemory(&machine{memory: 64 << 30, confined: 2 << 30, file: "/sys/fs/cgroup/pod/memory.max"}, 64<<30, 2048),
		judgeMemory(&machine{memory: 64 << 30, real: true, confined: 2 << 30, file: "/sys/fs/cgroup/pod/memory.max"}, 64<<30, 65536),
		judgeMemory(&machine{memory: 65 << 30, real: true}, 64<<30, 66560),
		judgeUnit(good), judgeUnit("LoadState=not-found\n"),
		judgeUnit("LoadState=loaded\nKillMode=control-group\nDelegate=no\nType=simple\nNeedDaemonReload=yes\n"),
	} {
		for _, f := range found {
			b.WriteString(f.String() + "\n")
			if f.remedy == "" && f.severity != severityOK {
				t.Errorf("%s: without a remedy", f)
			}
		}
	}
	golden := filepath.Join("testdata", "doctor.txt")
	if *update {
		if err := os.WriteFile(golden, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("got\n%s\nwant\n%s", &b, want)
	}
}

func TestLookDir(t *testing.T) {
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "file"), "")
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{
		file:                       "is no directory",
		filepath.Join(file, "x"):   "not a directory",
		filepath.Join(dir, "none"): "which noded will make",
	} {
		f := lookDir("spool", dir, "KEY")
		if len(f) != 1 || !strings.Contains(f[0].String(), says) || (f[0].severity == slurmconf.SeverityError) == (says == "which noded will make") {
			t.Errorf("%s: %v", dir, f)
		}
	}
	if os.Geteuid() == 0 {
		if f := lookDir("spool", open, "KEY"); len(f) != 1 || f[0].severity != slurmconf.SeverityError || f[0].remedy != "chmod go-w "+open {
			t.Errorf("a directory that all may write to: %v", f)
		}
		if f := lookDir("spool", dir, "KEY"); len(f) != 1 || f[0].severity != severityOK {
			t.Errorf("a good directory: %v", f)
		}
	}
}

// TestProbesAreBounded: one that does not return is a finding.
func TestProbesAreBounded(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	f := new(Site).ask(probe{"spool", func(*Site) []finding { <-hang; return nil }}, 10*time.Millisecond)
	if len(f) != 1 || f[0].severity != slurmconf.SeverityError || !strings.Contains(f[0].String(), "error: spool: no answer within") {
		t.Errorf("got %v", f)
	}
}
