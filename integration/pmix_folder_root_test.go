package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// greedy fills the folder of its step's PMIx server, with bytes, with directories in directories
// and with files, says how far it came, and ends, or waits for its end.
const greedy = `cd $PMIX_SERVER_TMPDIR || exit 9
head -c 1G /dev/zero >bytes 2>/dev/null
echo bytes $(stat -c %s bytes)
n=0; while [ $n -lt 25000 ] && mkdir d 2>/dev/null && cd d; do n=$((n+1)); done
echo levels $n
n=0; while [ $n -lt 25000 ] && true 2>/dev/null >f$n; do n=$((n+1)); done
echo files $n
`

// TestRootPMIxFolder: what a user makes in the folder of a step's PMIx server is bounded, and
// nothing of it is on the run directory, which the node's other steps need.
func TestRootPMIxFolder(t *testing.T) {
	n := startNode(t, site{})
	all := filepath.Join(n.run, "pmix")
	must(t, os.Mkdir(all, 0o711))
	must(t, unix.Mount("run", all, "tmpfs", 0, "size=24m,mode=0711")) // what a user could fill of a run directory
	out := filepath.Join(n.wd, "greedy")
	p := n.start(t, call{args: []string{"run", "--mpi=pmix", "-o", out, "sh", "-c", greedy + "exec sleep 1000"}, limit: time.Minute})
	doc := n.running(t)
	said := inFile(t, out, "files ")
	if r := n.ctl(t, "run", "--mpi=pmix", "true"); r.code != 0 {
		t.Errorf("another step meanwhile: %v", r)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(all, &st); err != nil || st.Blocks-st.Bfree > 16 {
		t.Errorf("%d blocks of the run directory are full, %v", st.Blocks-st.Bfree, err)
	}
	n.ctl(t, "cancel", doc.id())
	p.wait(t)
	lines := strings.Split(strings.TrimSpace(said), "\n")
	for _, line := range lines {
		what, number, _ := strings.Cut(line, " ")
		got, err := strconv.Atoi(number)
		most := map[string]int{"bytes": 129 << 20, "levels": 1100, "files": 1100}[what]
		if err != nil || got > most || what == "bytes" && got < 100<<20 {
			t.Errorf("%q, want %d at the most", line, most)
		}
	}
	if len(lines) != 3 {
		t.Errorf("got %q", said)
	}
	n.noPMIxLeft(t)
	must(t, unix.Unmount(all, 0)) // which nothing holds: checkClean sees all mounts
	n.checkClean(t)
}

// TestRootPMIxFolderSeen: pmixhost and the tasks see the folder in whatever mount namespace they
// are, and no namespace keeps it.
func TestRootPMIxFolderSeen(t *testing.T) {
	base := containerBase(t)
	for name, c := range map[string]struct {
		site   site
		plugin bool
	}{
		"no container":                       {site: site{}},
		"a job's container":                  {site: site{Slurm: "JobContainerType=job_container/tmpfs\n", Container: "AutoBasePath=true\nBasePath=" + base + "\nDirs=/dev/shm\n"}},
		"the step in a container":            {site: site{Slurm: "JobContainerType=job_container/tmpfs\n", Container: "AutoBasePath=true\nBasePath=" + base + "\nDirs=/dev/shm\nEntireStepInNS=true\n"}},
		"a plugin's namespace":               {plugin: true},
		"a container whose mounts propagate": {site: site{Slurm: "JobContainerType=job_container/tmpfs\n", Container: "AutoBasePath=true\nBasePath=" + base + "\nDirs=/dev/shm\nShared=true\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := startNode(t, c.site)
			if c.plugin {
				dir := n.path("private")
				must(t, os.Mkdir(dir, 0o755))
				n.stack(t, "required "+buildKind(t, n, "nsmount.c")+" "+dir)
			}
			program := buildLinger(t, n)
			out := filepath.Join(n.wd, "seen")
			p := n.start(t, call{args: []string{"run", "-n", "2", "--mpi=pmix", "-o", out, "sh", "-c", "stat -f -c %T $PMIX_SERVER_TMPDIR; exec " + program}, env: libOpenMPI.env})
			doc := n.running(t)
			inFile(t, out, "up 0\n")
			if said := inFile(t, out, "up 1\n"); strings.Count(said, "tmpfs\n") != 2 {
				t.Errorf("got %q", said)
			}
			// Another job's namespace gets a copy of every mount.
			look := `echo before $(grep -c stepd-pmix /proc/self/mountinfo); until [ -e go ]; do sleep 0.05; done; echo after $(grep -c stepd-pmix /proc/self/mountinfo)`
			others := filepath.Join(n.wd, "others")
			other := n.start(t, call{args: []string{"run", "-o", others, "sh", "-c", look}})
			inFile(t, others, "before 1\n")
			n.ctl(t, "cancel", doc.id())
			p.wait(t)
			n.noPMIxLeft(t)
			n.userFile(t, "go", "", 0o644)
			other.wait(t)
			inFile(t, others, "after 0\n")
			n.checkClean(t)
		})
	}
}

// inFile waits until a file has the words, and returns what else it has.
func inFile(t testing.TB, path, words string) (text string) {
	t.Helper()
	eventually(t, callTimeout, fmt.Sprintf("%q", words), func() error {
		b, err := os.ReadFile(path)
		if text = string(b); err == nil && !strings.Contains(text, words) {
			err = fmt.Errorf("%q", text)
		}
		return err
	})
	return text
}
