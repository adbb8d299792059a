package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func sortedLines(s string) []string {
	lines := strings.Split(strings.TrimSuffix(s, "\n"), "\n")
	slices.Sort(lines)
	return lines
}

// TestRootOutputOptions: where -o, -e and -i send the streams.
func TestRootOutputOptions(t *testing.T) {
	n := startNode(t, site{})
	t.Run("every pattern", func(t *testing.T) {
		pattern := filepath.Join(n.wd, "pat_%t_%j_%J_%s_%n_%N_%u_%x_%%_%2t_%A_%a")
		r := n.ctl(t, "run", "-n", "2", "-o", pattern, "echo", "x")
		if r.code != 0 || r.out != "" || r.err != "" {
			t.Fatalf("want silence and 0, got %v", r)
		}
		job := n.last(t).JobID
		for rank := range 2 {
			name := fmt.Sprintf("pat_%d_%d_%d.0_0_0_vm_%s_echo_%%_%02d_%d_4294967294", rank, job, job, alice.name, rank, job)
			b, err := os.ReadFile(filepath.Join(n.wd, name))
			if err != nil || string(b) != "x\n" {
				entries, _ := filepath.Glob(filepath.Join(n.wd, "pat_*"))
				t.Errorf("file %q: %q, %v; there are %q", name, b, err, entries)
				continue
			}
			var owner string
			if st, err := os.Stat(filepath.Join(n.wd, name)); err == nil {
				owner = fmt.Sprint(st.Mode().Perm())
			}
			if owner != "-rw-r--r--" {
				t.Errorf("file %q: mode %s", name, owner)
			}
		}
	})
	t.Run("one file for all", func(t *testing.T) {
		file := filepath.Join(n.wd, "all.out")
		if r := n.ctl(t, "run", "-n", "4", "-o", file, "sh", "-c", "echo out $SLURM_PROCID; echo err $SLURM_PROCID >&2"); r.code != 0 || r.err != "" {
			t.Fatalf("-o takes stderr along: %v", r)
		}
		b, err := os.ReadFile(file)
		must(t, err)
		want := []string{"err 0", "err 1", "err 2", "err 3", "out 0", "out 1", "out 2", "out 3"}
		if got := sortedLines(string(b)); !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
	t.Run("stderr of its own", func(t *testing.T) {
		file := filepath.Join(n.wd, "e.%t")
		r := n.ctl(t, "run", "-n", "2", "-e", file, "sh", "-c", "echo out; echo err >&2")
		if r.out != "out\nout\n" || r.err != "" {
			t.Errorf("got %v", r)
		}
		for _, name := range []string{"e.0", "e.1"} {
			if b, err := os.ReadFile(filepath.Join(n.wd, name)); err != nil || string(b) != "err\n" {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
	})
	for _, c := range []struct {
		name string
		args []string
		out  []string
	}{
		{"none", []string{"-o", "none"}, []string{""}},
		{"all", []string{"-o", "all"}, []string{"0", "1"}},
		{"one rank", []string{"-o", "1"}, []string{"1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := n.ctl(t, slices.Concat([]string{"run", "-n", "2"}, c.args, []string{"sh", "-c", "echo $SLURM_PROCID"})...)
			if got := sortedLines(r.out); r.code != 0 || !slices.Equal(got, c.out) {
				t.Errorf("got %v, want lines %q", r, c.out)
			}
		})
	}
	for _, c := range []struct{ flag, says string }{
		{"--input=/no/such/input", `Could not open stdin file "/no/such/input": No such file or directory`},
		{"--output=/no/such/dir/out", `Could not open stdout file "/no/such/dir/out": No such file or directory`},
		{"--error=/no/such/dir/err", `Could not open stderr file "/no/such/dir/err": No such file or directory`},
		{"--output=/etc/passwd", `Could not open stdout file "/etc/passwd": Permission denied`},
	} {
		t.Run(c.flag, func(t *testing.T) {
			r := n.ctl(t, "run", c.flag, "cat")
			if r.code != 1 || r.out != "" {
				t.Errorf("want exit code 1, got %v", r)
			}
			contains(t, "stderr", r.err, "stepd-vm: error: "+c.says)
		})
	}
	n.checkClean(t)
}

// TestRootLabels: -l puts the rank before every line, and ends the last one.
func TestRootLabels(t *testing.T) {
	n := startNode(t, site{})
	r := n.ctl(t, "run", "-n", "2", "-l", "sh", "-c", `printf a; sleep .1; printf "b\nnoeol"; echo err >&2`)
	if got := sortedLines(r.out); !slices.Equal(got, []string{"0: ab", "0: noeol", "1: ab", "1: noeol"}) || r.code != 0 {
		t.Errorf("stdout: %v", r)
	}
	if got := sortedLines(r.err); !slices.Equal(got, []string{"0: err", "1: err"}) {
		t.Errorf("stderr: %v", r)
	}
	t.Run("ranks are as wide as the widest", func(t *testing.T) {
		r := n.ctl(t, "run", "-n", "11", "-l", "echo", "x")
		lines := sortedLines(r.out)
		if len(lines) != 11 || lines[0] != " 0: x" && lines[0] != "00: x" {
			t.Errorf("want 11 lines with ranks of two columns, got %q", lines)
		}
	})
}

// TestRootStdin: every task reads all of stdin; with a number only one does.
func TestRootStdin(t *testing.T) {
	n := startNode(t, site{})
	text := strings.Repeat("a line of input\n", 20000) // more than a pipe holds
	t.Run("to all ranks", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "-n", "3", "sh", "-c", "cat | wc -c"}, stdin: text})
		want := fmt.Sprint(len(text))
		for _, line := range sortedLines(r.out) {
			if strings.TrimSpace(line) != want {
				t.Errorf("want %s bytes in each task, got %v", want, r)
			}
		}
		if r.code != 0 || len(sortedLines(r.out)) != 3 {
			t.Errorf("got %v", r)
		}
	})
	t.Run("to one rank", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "-n", "2", "--input=0", "sh", "-c", "echo $SLURM_PROCID $(cat | wc -c)"}, stdin: text})
		if got := sortedLines(r.out); !slices.Equal(got, []string{fmt.Sprintf("0 %d", len(text)), "1 0"}) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("from a file", func(t *testing.T) {
		n.userFile(t, "in.0", "zero\n", 0o600)
		n.userFile(t, "in.1", "one\n", 0o600)
		r := n.ctl(t, "run", "-n", "2", "-i", "in.%t", "cat")
		if got := sortedLines(r.out); !slices.Equal(got, []string{"one", "zero"}) {
			t.Errorf("got %v", r)
		}
	})
	t.Run("a task that does not read", func(t *testing.T) {
		r := n.do(t, call{args: []string{"run", "true"}, stdin: text})
		if r.code != 0 || r.err != "" {
			t.Errorf("got %v", r)
		}
	})
	t.Run("through to stdout byte by byte", func(t *testing.T) {
		var every bytes.Buffer
		for i := range 300000 {
			every.WriteByte(byte(i * 7))
		}
		r := n.do(t, call{args: []string{"run", "cat"}, stdin: every.String()})
		if r.out != every.String() {
			t.Errorf("%d bytes of %d came back, exit code %d, stderr %q", len(r.out), every.Len(), r.code, r.err)
		}
	})
}

// TestRootRegularFilesAreHandedOver: a user's own regular file becomes the
// task's descriptor itself, at its offset.
func TestRootRegularFilesAreHandedOver(t *testing.T) {
	n := startNode(t, site{})
	path := n.userFile(t, "out.txt", "before\n", 0o644)
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	defer out.Close()
	null, err := os.Open("/dev/null")
	must(t, err)
	defer null.Close()
	r := n.do(t, call{args: []string{"run", "-n", "2", "sh", "-c", "readlink /proc/self/fd/1"}, files: []*os.File{null, out, out}})
	b, err := os.ReadFile(path)
	must(t, err)
	if want := "before\n" + path + "\n" + path + "\n"; r.code != 0 || string(b) != want {
		t.Errorf("exit code %d, file %q, want %q", r.code, b, want)
	}
}

// TestRootLargeOutput: nothing is lost or reordered, at any speed of the reader.
func TestRootLargeOutput(t *testing.T) {
	n := startNode(t, site{})
	r := n.ctl(t, "run", "-n", "2", "sh", "-c", "seq 1 200000 | sed s/^/$SLURM_PROCID:/")
	next := map[string]int{}
	for _, line := range strings.Split(strings.TrimSuffix(r.out, "\n"), "\n") {
		rank, number, _ := strings.Cut(line, ":")
		next[rank]++
		if fmt.Sprint(next[rank]) != number {
			t.Fatalf("rank %s: got %q, want line %d", rank, line, next[rank])
		}
	}
	if r.code != 0 || next["0"] != 200000 || next["1"] != 200000 {
		t.Errorf("exit code %d, lines %v", r.code, next)
	}
}
