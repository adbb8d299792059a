package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestRootScriptForProlog: Prolog, the job and Epilog find the batch script where the site's
// programs look for it, in SlurmdSpoolDir/job<5 digits>, with slurmstepd's owners and modes, except that the script is root's; it is
// gone at the job's end, also after noded was killed; what slurmd has there is left alone.
func TestRootScriptForProlog(t *testing.T) {
	waits(t)
	n := startNode(t, site{})
	slurmd := n.path("slurmd")
	must(t, os.MkdirAll(filepath.Join(slurmd, "job00002"), 0o755))
	seen := n.path("seen")
	program := n.write(t, "program.sh", fmt.Sprintf(`#!/bin/sh
exec 2>&1 >>%s
PATH=/usr/bin:/bin
dir=%s/$(printf 'job%%05d' "$SLURM_JOB_ID")
echo "$SLURM_SCRIPT_CONTEXT $(stat -L -c '%%a %%u %%g' "$dir" "$dir/slurm_script" | tr '\n' ' ')$(sed -n 's/^# site: //p' "$dir/slurm_script")"
`, seen, slurmd))
	must(t, os.Chmod(program, 0o755))
	n.restartWith(t, "SlurmdSpoolDir="+slurmd+"\nProlog="+program+"\nEpilog="+program+"\n")
	user := testUser(t)
	script := n.userFile(t, "job.sh", "#!/bin/sh\n# site: charge=7\ntouch begun\necho $0\n{ echo '# site: charge=0' >>$0; chmod 700 $0; } 2>/dev/null && echo changed\nwhile [ ! -e goon ]; do sleep 0.05; done\nrm begun goon\n", 0o755)
	inSlurmd := func() string {
		t.Helper()
		entries, err := os.ReadDir(slurmd)
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " ")
	}
	for job := 1; job <= 3; job++ {
		must(t, os.WriteFile(seen, nil, 0o644))
		if r := n.ctl(t, "batch", "-o", "out", script); r.code != 0 {
			t.Fatal(r)
		}
		eventually(t, callTimeout, "the job's script", func() error { _, err := os.Stat(filepath.Join(n.wd, "begun")); return err })
		if job == 3 {
			n.kill9(t)
			n.boot(t)
		}
		n.userFile(t, "goon", "", 0o644)
		n.idle(t)
		modes := fmt.Sprintf("750 0 %d 750 0 0 charge=7", user.gid)
		want := "prolog_slurmd " + modes + "\nepilog_slurmd " + modes + "\n"
		if job == 2 { // slurmd's directory, which has no script
			want = "prolog_slurmd 755 0 0 \nepilog_slurmd 755 0 0 \n"
			n.logs(t, "prolog and epilog do not find the batch script in SlurmdSpoolDir")
		}
		if got := readFile(t, seen); got != want {
			t.Errorf("job %d: prolog and epilog see %q, want %q", job, got, want)
		}
		if got := readFile(t, filepath.Join(n.wd, "out")); got != n.path("spool", "scripts", fmt.Sprintf("job%05d", job), "slurm_script")+"\n" {
			t.Errorf("job %d: its $0 is %q", job, got)
		}
		if got := inSlurmd(); got != "job00002" {
			t.Errorf("after job %d SlurmdSpoolDir has %q", job, got)
		}
		if entries, err := os.ReadDir(n.path("spool", "scripts")); err != nil || len(entries) != 0 {
			t.Errorf("after job %d the spool has %v, %v", job, entries, err)
		}
	}
	if st, err := os.Lstat(filepath.Join(slurmd, "job00002")); err != nil || st.Sys().(*syscall.Stat_t).Mode&syscall.S_IFMT != syscall.S_IFDIR {
		t.Errorf("slurmd's own: %v, %v", st, err)
	}
	// A link that a killed noded has left.
	must(t, os.Symlink(n.path("spool", "scripts", "job00001"), filepath.Join(slurmd, "job00001")))
	must(t, os.Symlink("/nonexistent", filepath.Join(slurmd, "job00009")))
	n.kill9(t)
	n.boot(t)
	if got := inSlurmd(); got != "job00002 job00009" {
		t.Errorf("SlurmdSpoolDir has %q after noded was killed: its own link goes, another's stays", got)
	}
}
