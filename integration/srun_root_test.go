package integration

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// srunRow is a row of testdata/srun.tsv.
type srunRow struct {
	name, script, out, err string
	code                   int
}

var unescape = strings.NewReplacer(`\\`, `\`, `\n`, "\n", `\t`, "\t")

func srunRows(t *testing.T) (rows []srunRow) {
	t.Helper()
	b, err := os.ReadFile("testdata/srun.tsv")
	must(t, err)
	seen := make(map[string]bool)
	for i, line := range strings.Split(strings.TrimSuffix(string(b), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 6 || f[5] == "" || seen[f[0]] {
			t.Fatalf("srun.tsv:%d: want six fields, a source, and a name of its own: %q", i+1, line)
		}
		seen[f[0]] = true
		code, err := strconv.Atoi(f[4])
		must(t, err)
		rows = append(rows, srunRow{f[0], unescape.Replace(f[1]), unescape.Replace(f[2]), unescape.Replace(f[3]), code})
	}
	return rows
}

// srunAtATime bounds the rows that run at a time: some wait for a second to pass.
const srunAtATime = 6

// TestRootSrun holds every row of testdata/srun.tsv against stepctl run.
func TestRootSrun(t *testing.T) {
	waits(t)
	n := startNode(t, site{Slurm: "KillWait=3\n"})
	rows := srunRows(t)
	got := make([]result, len(rows))
	errs := make([]error, len(rows))
	turns := make(chan struct{}, srunAtATime)
	var wg sync.WaitGroup
	for i := range rows {
		dir := filepath.Join(n.wd, fmt.Sprint("row", i))
		must(t, os.Mkdir(dir, 0o755))
		must(t, os.Chown(dir, int(testUser(t).uid), int(testUser(t).gid)))
		cmd := n.srunCommand(t, dir, rows[i].script)
		turns <- struct{}{}
		wg.Go(func() {
			got[i], errs[i] = runRow(cmd)
			<-turns
		})
	}
	wg.Wait()
	for i, r := range rows {
		t.Run(r.name, func(t *testing.T) {
			must(t, errs[i])
			dir := filepath.Join(n.wd, fmt.Sprint("row", i))
			if out := settled(got[i].out, dir); out != settled(r.out, dir) {
				t.Errorf("stdout: got %q, want %q", out, settled(r.out, dir))
			}
			if text := settled(got[i].err, dir); text != settled(r.err, dir) {
				t.Errorf("stderr: got %q, want %q", text, settled(r.err, dir))
			}
			if got[i].code != r.code {
				t.Errorf("exit code %d, want %d", got[i].code, r.code)
			}
		})
	}
}

// srunCommand is a shell that runs the script as the test user.
func (n *node) srunCommand(t *testing.T, dir, script string) *exec.Cmd {
	t.Helper()
	user := testUser(t)
	// A background process of a shell without job control ignores SIGINT and SIGQUIT,
	// which it hands on: env undoes that.
	// up waits until the task has said so, and a moment more, in which its client mostly gets
	// the news; said waits until a file has a word. twice sends SIGINT until two have come
	// within the second that makes them a pair: to the process $1, whose words are in $2.
	srun := `up() { while [ ! -e up ]; do sleep 0.02; done; sleep 0.2; }
said() { while ! grep -qs "$1" "$2"; do sleep 0.02; done; }
twice() { until grep -qs sending "$2"; do
	once=$(grep -cs 'one more' "$2"); kill -INT "$1"
	until grep -qs sending "$2" || test "$(grep -cs 'one more' "$2")" -gt "$once"; do sleep 0.02; done
done; }
` + "stepctl() { \"$STEPCTL\" \"$@\"; }\nalias srun='env --default-signal=INT,QUIT $STEPCTL run'\n"
	cmd := exec.Command("/bin/sh", "-c", srun+"eval \"$SCRIPT\"")
	cmd.Dir = dir
	cmd.Env = []string{
		"PATH=/usr/bin:/bin", "HOME=" + n.path("home"), "USER=" + user.name, "LOGNAME=" + user.name,
		"NODED_SOCKET=" + n.socket(), "STEPCTL=" + n.bin, "SCRIPT=" + script,
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user.uid, Gid: user.gid, Groups: user.groups}}
	return cmd
}

func runRow(cmd *exec.Cmd) (result, error) {
	var out, text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &text
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })() // it may have ended
	err := cmd.Wait()
	exit := new(exec.ExitError)
	if errors.As(err, &exit) {
		err = nil
	}
	return result{out: out.String(), err: text.String(), code: cmd.ProcessState.ExitCode()}, cmp.Or(ctx.Err(), err)
}

var varying = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`StepId=[0-9]+\.[0-9]+`), "StepId=ID"}, {regexp.MustCompile(`STEP [0-9]+\.[0-9]+`), "STEP ID"},
	{regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}`), "TIME"},
}

// settled is an output without what varies: its lines sorted, one for each task.
func settled(text, dir string) string {
	text = strings.ReplaceAll(text, dir, "DIR")
	for _, v := range varying {
		text = v.what.ReplaceAllString(text, v.by)
	}
	var lines []string
	for _, line := range strings.SplitAfter(text, "\n") {
		if line == "" {
			continue
		}
		if tasks := taskLines(line); len(tasks) > 0 {
			for _, task := range tasks {
				lines = append(lines, "stepctl: error: vm: task "+task+"\n")
			}
			continue
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
