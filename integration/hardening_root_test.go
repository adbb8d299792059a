package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// daemons are the processes of noded and of its steps, by name.
func (n *node) daemons(t testing.TB) map[string][]int {
	t.Helper()
	all := map[string][]int{"noded": {n.cmd.Process.Pid}}
	for _, s := range n.ps(t) {
		for _, name := range []string{"stepd", "spankhost"} {
			all[name] = append(all[name], pidsOf(t, fmt.Sprintf("%s: [%s]", name, s.id()))...)
		}
	}
	return all
}

// TestRootDaemonsAreShut: no memory of a daemon's is read, no core of it is made and no
// program of it written, by the user of a step nor by root in a namespace of his own; the
// tasks are as open to their user as ever.
func TestRootDaemonsAreShut(t *testing.T) {
	// Root without CAP_SYS_PTRACE may look into a process of a root that has it not
	// either, if that is dumpable (ptrace(2), "ptrace access mode checking").
	without := []string{"setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace", "--"}
	n := startNode(t, site{Before: append(underUmask("0"), without...)})
	look := func(pid int) error {
		return command("setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace", "--", "readlink", fmt.Sprintf("/proc/%d/exe", pid))
	}
	plain := exec.Command("setpriv", "--inh-caps=-sys_ptrace", "--bounding-set=-sys_ptrace", "--", "cat")
	input, err := plain.StdinPipe()
	must(t, err)
	must(t, plain.Start())
	eventually(t, callTimeout, "a dumpable process that can be looked into", func() error { return look(plain.Process.Pid) })
	must(t, input.Close())
	must(t, plain.Wait())
	p := n.start(t, call{args: []string{"run", "sleep", "1000"}})
	id := n.running(t).id()
	// Until its execve a task is called as the host is, from which it was forked.
	eventually(t, callTimeout, "the task's own program", func() error {
		doc := n.show(t, id)
		if doc.Tasks[0].PID == nil {
			return errors.New("it has no pid")
		}
		if comm := readFile(t, fmt.Sprintf("/proc/%d/comm", *doc.Tasks[0].PID)); comm != "sleep\n" {
			return fmt.Errorf("it is %q", comm)
		}
		return nil
	})
	var exes []string
	for name, pids := range n.daemons(t) {
		if len(pids) == 0 {
			t.Errorf("there is no %s", name)
		}
		for _, pid := range pids {
			if look(pid) == nil {
				t.Errorf("%s (pid %d) is dumpable", name, pid)
			}
			exes = append(exes, fmt.Sprintf("/proc/%d/exe", pid))
		}
	}
	// As the user, and as a root without rights outside: a container's. The map of a process that has
	// ended meanwhile can be opened, and is empty.
	const try = `for f in "$@"; do for how in "<" ">>"; do if eval "true $how $f" 2>/dev/null; then echo "$f opened by $how"; fi; done
		d=${f%/exe}; for x in mem environ maps auxv; do if head -c 1 $d/$x 2>/dev/null | grep -q .; then echo "$d/$x was read"; fi; done; done; echo tried`
	for _, in := range [][]string{{}, {"unshare", "--user", "--map-root-user"}} {
		args := append([]string{"run", "--overcommit"}, in...)
		args = append(append(args, "sh", "-c", try, "sh"), exes...)
		if r := n.ctl(t, args...); r.code != 0 || r.out != "tried\n" {
			t.Errorf("%q in a step: %v", in, r)
		}
	}
	if r := n.ctl(t, "run", "--overcommit", "sh", "-c", "stat -c %U /proc/self/environ; head -c 4 /proc/self/environ >/dev/null && echo open"); r.out != alice.name+"\nopen\n" {
		t.Errorf("a task's own files: %v", r)
	}
	must(t, n.ctlError(t, "cancel", id))
	p.wait(t)
	n.checkClean(t)
	checkModes(t, n.run)
	checkModes(t, n.path("spool"))
}

// underUmask starts noded with a umask that is not its own.
func underUmask(mask string) []string {
	return []string{"sh", "-c", "umask " + mask + "; exec \"$@\"", "sh"}
}

// checkModes: only root writes in dir; sockets are open to all, since the kernel
// identifies their clients.
func checkModes(t *testing.T, dir string) {
	t.Helper()
	seen := 0
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&(fs.ModeSocket|fs.ModeSymlink) != 0 {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o022 != 0 {
			t.Errorf("%s may be written by others: %s", path, info.Mode())
		}
		seen++
		return err
	}))
	if seen < 2 {
		t.Errorf("%d files in %s", seen, dir)
	}
}

// secretScan looks at all processes, again and again, for what must not be in their
// arguments, nor in the environment of any that is not its owner's.
type secretScan struct {
	owner   uint32
	nodes   []*node // only what belongs to these; none: all processes
	secrets []string
	stop    chan struct{}
	wg      sync.WaitGroup

	mu    sync.Mutex
	found map[string]bool // guarded by mu
	looks int             // guarded by mu
}

func scanSecrets(owner uint32, nodes []*node, secrets ...string) *secretScan {
	s := &secretScan{owner: owner, nodes: nodes, secrets: secrets, stop: make(chan struct{}), found: map[string]bool{}}
	s.wg.Go(func() {
		for {
			select {
			case <-s.stop:
				return
			default:
				s.look()
			}
		}
	})
	return s
}

// look looks once.
func (s *secretScan) look() {
	dirs, _ := filepath.Glob("/proc/[0-9]*") // the pattern is right
	for _, dir := range dirs {
		if !s.concerns(dir) {
			continue
		}
		own := s.isOwner(dir)
		for _, file := range []string{"cmdline", "environ"} {
			if own && file == "environ" {
				continue // the owner's secret
			}
			b, err := os.ReadFile(filepath.Join(dir, file))
			if err != nil {
				continue
			}
			for _, secret := range s.secrets {
				if bytes.Contains(b, []byte(secret)) {
					if file == "environ" && s.isOwner(dir) {
						continue // it has become the owner's since: a task
					}
					comm, _ := os.ReadFile(filepath.Join(dir, "comm")) // it may be gone
					s.mu.Lock()
					s.found[fmt.Sprintf("%s of %s has %q", file, strings.TrimSpace(string(comm)), secret)] = true
					s.mu.Unlock()
				}
			}
		}
	}
	s.mu.Lock()
	s.looks++
	s.mu.Unlock()
}

// isOwner reports whether the process is the owner's, or gone.
func (s *secretScan) isOwner(dir string) bool {
	info, err := os.Stat(dir)
	return err != nil || info.Sys().(*syscall.Stat_t).Uid == s.owner
}

// concerns reports whether the process is to be looked at.
func (s *secretScan) concerns(dir string) bool {
	pid, err := strconv.Atoi(filepath.Base(dir))
	return err == nil && (len(s.nodes) == 0 || slices.ContainsFunc(s.nodes, func(n *node) bool {
		p, ok := n.ours(pid)
		return ok || p.comm == "stepctl" || p.comm == "noded"
	}))
}

// looked is how often it has looked.
func (s *secretScan) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// again waits until all has been looked at from now on.
func (s *secretScan) again(t testing.TB) {
	t.Helper()
	from := s.looked()
	eventually(t, callTimeout, "a look at all processes", func() error {
		if now := s.looked(); now < from+2 {
			return fmt.Errorf("%d of 2", now-from)
		}
		return nil
	})
}

// end stops it and reports what it has found.
func (s *secretScan) end(t testing.TB) {
	t.Helper()
	close(s.stop)
	s.wg.Wait()
	for text := range s.found {
		t.Error(text)
	}
}

// TestRootNoSecrets: what a user keeps in environment and script is in no argument of any
// process, and in no other user's environment, from prolog to epilog.
func TestRootNoSecrets(t *testing.T) {
	n := startNode(t, site{})
	gates := map[string]string{}
	for _, name := range []string{"prolog", "epilog"} {
		gates[name] = n.path(name + ".gate")
		must(t, syscall.Mkfifo(gates[name], 0o600))
	}
	conf := readFile(t, n.path("slurm.conf"))
	for name, gate := range gates {
		path := n.write(t, name+".sh", fmt.Sprintf("#!/bin/sh\nread x < %s\n", gate))
		must(t, os.Chmod(path, 0o755))
		conf += strings.ToUpper(name[:1]) + name[1:] + "=" + path + "\n"
	}
	n.kill9(t)
	n.write(t, "slurm.conf", conf)
	n.boot(t)
	secrets := []string{"environ-4711-secret", "script-4711-secret"}
	scan := scanSecrets(alice.uid, nil, secrets...)
	script := n.userFile(t, "job.sh", "#!/bin/sh\n# script-4711-secret\n[ \"$TOKEN\" = environ-4711-secret ] || exit 9\nsleep 0.2\n", 0o755)
	job := n.start(t, call{args: []string{"batch", "-W", "-o", "/dev/null", script}, env: []string{"TOKEN=environ-4711-secret"}})
	for _, phase := range []string{"prolog", "epilog"} {
		// It opens when the script does: the phase has begun.
		gate, err := os.OpenFile(gates[phase], os.O_WRONLY, 0)
		must(t, err)
		scan.again(t)
		_, err = gate.WriteString("go\n")
		must(t, err)
		must(t, gate.Close())
	}
	if r := job.wait(t); r.code != 0 {
		t.Errorf("batch: %v", r)
	}
	scan.end(t)
	n.idle(t)
	log := n.wholeLog(t)
	for _, secret := range secrets {
		if strings.Contains(log, secret) {
			t.Errorf("noded's log has %q", secret)
		}
	}
}

// TestRootSpoolLinks: root follows no link in the spool, whichever user has made it.
func TestRootSpoolLinks(t *testing.T) {
	n := startNode(t, site{Stepd: "ReplayBytes=4096\n"})
	if r := n.ctl(t, "run", "-l", "echo", "kept"); r.code != 0 {
		t.Fatal(r)
	}
	n.idle(t)
	secret := n.write(t, "secret", `{"time":"2026-11-22T10:00:00Z","event":"secret"}`+"\n")
	for _, name := range []string{"events/1.0.jsonl", "output/1.0"} {
		path := n.path("spool", name)
		must(t, os.Remove(path))
		must(t, os.Symlink(secret, path))
	}
	for _, args := range [][]string{{"events", "1.0"}, {"output", "1.0"}} {
		if r := n.ctlRoot(t, args...); r.code == 0 || strings.Contains(r.out+r.err, "secret\"") {
			t.Errorf("stepctl %q: %v", args, r)
		}
	}
	// What the next step is to write to.
	victim := n.write(t, "victim", "untouched")
	for _, name := range []string{"events/2.0.jsonl", "output/2.0", "output/2.0.tmp", "results/2.0", "results/2.0.tmp"} {
		must(t, os.Symlink(victim, n.path("spool", name)))
	}
	// What was left there of a number that was forgotten is removed: the link, not the file.
	for range 2 {
		if r := n.ctl(t, "run", "echo", "x"); r.code != 0 || r.out != "x\n" {
			t.Errorf("a step whose log was a link: %v", r)
		}
	}
	if got := readFile(t, victim); got != "untouched" {
		t.Errorf("root has written through a link: %q", got)
	}
}
