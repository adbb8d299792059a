package slurmconf

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLogicalLines(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []logicalLine
	}{
		{"plain", "a=1\nb=2", []logicalLine{{"a=1", 1}, {"b=2", 2}}},
		{"comments", "# x\na=1 # y\n\n#z", []logicalLine{{"a=1", 2}}},
		{"escaped number sign", `a=\#1 # c`, []logicalLine{{"a=#1", 1}}},
		{"escaped backslash before a comment", `a=\\# c`, []logicalLine{{`a=\`, 1}}},
		{"quotes do not protect", `a="b#c"`, []logicalLine{{`a="b`, 1}}},
		{"continued", "a=\\\n1\nb", []logicalLine{{"a=1", 1}, {"b", 3}}},
		{"continued, blanks behind", "a=1 \\ \t\n  b\nc", []logicalLine{{"a=1   b", 1}, {"c", 3}}},
		{"continued within a word", "Kill\\\nWait=5", []logicalLine{{"KillWait=5", 1}}},
		{"two backslashes do not continue", "a\\\\\nb", []logicalLine{{`a\`, 1}, {"b", 2}}},
		{"a comment is not continued", "# a \\\nb", []logicalLine{{"b", 2}}},
		{"continued into the end", "a=1\\", []logicalLine{{"a=1", 1}}},
		{"continued by nothing", "a=1\\\n\nb", []logicalLine{{"a=1", 1}, {"b", 3}}},
		{"carriage returns", "a=1\r\nb=2\\\r\n3\r\n", []logicalLine{{"a=1", 1}, {"b=23", 2}}},
		{"nothing", "", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, logicalLines(c.text), cmp.AllowUnexported(logicalLine{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParsePairs(t *testing.T) {
	for text, want := range map[string][]pair{
		"a=1":              {{"a", "1"}},
		`a = "x y"  b=2`:   {{"a", "x y"}, {"b", "2"}},
		`a=""`:             {{"a", ""}},
		`a=b"c`:            {{"a", `b"c`}},
		"a=task=3,x=4":     {{"a", "task=3,x=4"}},
		"A_1.b=c":          {{"A_1.b", "c"}},
		"":                 nil,
		"a=1 junk":         {{"a", "1"}},
		"a=1 b":            {{"a", "1"}},
		"a=1 b=":           {{"a", "1"}},
		"a=1 \xc3\xa4=2":   {{"a", "1"}},
		"PartitionName=p ": {{"PartitionName", "p"}},
	} {
		got, _ := parsePairs(text)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(pair{})); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	}
}

func TestInclude(t *testing.T) {
	sub := t.TempDir()
	if err := os.WriteFile(filepath.Join(sub, "far.conf"), []byte("include near.conf\nMinJobAge=9\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, probs, dir := load(t, map[string]string{
		"slurm.conf": "ClusterName=Abc\nINCLUDE\t %c.inc\nInclude \"" + filepath.Join(sub, "far.conf") + "\"\ninclude none.conf\ninclude *.inc\n",
		"abc.inc":    "KillWait=7\nKillWait=junk\n",
		"near.conf":  "UnkillableStepProgram=/near\n", // relative to slurm.conf, not to the file that names it
		"mpi.conf":   "include %c.mpi\n",
		"abc.mpi":    "PMIxDebug=yes\n",
	})
	if c.KillWait.Seconds() != 7 || c.MinJobAge.Seconds() != 9 || c.UnkillableStepProgram != "/near" {
		t.Errorf("got %v, %v, %q", c.KillWait, c.MinJobAge, c.UnkillableStepProgram)
	}
	if !c.Mpi.Debug {
		t.Errorf("mpi.conf: got %v", c.Mpi)
	}
	want := []string{
		`error: slurm.conf:4: cannot include "none.conf": open none.conf: no such file or directory`,
		`error: slurm.conf:5: cannot include "*.inc": open *.inc: no such file or directory`,
		`warning: abc.inc:2: KillWait was set at abc.inc:1 already: this one counts; remove one of them`,
		`error: abc.inc:2: cannot use KillWait="junk": not a whole number; write a number from 0 to 65533`,
	}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestIncludeNeedsClusterName(t *testing.T) {
	_, probs, dir := load(t, map[string]string{"slurm.conf": "include %c.inc\nClusterName=abc\n", "abc.inc": "KillWait=7\n"})
	want := []string{`error: slurm.conf:1: cannot include "%c.inc": ClusterName is not known here; set ClusterName above this line`}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestIncludeLoop(t *testing.T) {
	dir := write(t, map[string]string{"slurm.conf": "include b\nKillWait=5\n", "b": "include link\nMinJobAge=6\n"})
	if err := os.Symlink("slurm.conf", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	c, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm")
	if err != nil || c.KillWait.Seconds() != 5 || c.MinJobAge.Seconds() != 6 {
		t.Fatalf("got %+v, %v", c, err)
	}
	want := []string{`error: b:1: cannot include "link": it includes itself: slurm.conf -> b -> link`}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
}

func TestIncludeLimits(t *testing.T) {
	t.Run("depth", func(t *testing.T) {
		files := map[string]string{"slurm.conf": "include 1\n"}
		for i := 1; i < 2*depthMax; i++ {
			files[fmt.Sprint(i)] = fmt.Sprintf("include %d\n", i+1)
		}
		_, probs, _ := load(t, files)
		if len(probs) != 1 || !strings.Contains(probs[0].Text, "nested deeper than 16") {
			t.Errorf("got %v", probs)
		}
	})
	t.Run("files", func(t *testing.T) {
		_, probs, _ := load(t, map[string]string{"slurm.conf": strings.Repeat("include a\n", filesMax+5), "a": ""})
		if len(probs) != 6 || !strings.Contains(probs[0].Text, "more than 1024 files") {
			t.Errorf("got %d: %v", len(probs), probs)
		}
	})
	t.Run("bytes together", func(t *testing.T) {
		_, probs, _ := load(t, map[string]string{"slurm.conf": strings.Repeat("include a\n", 7), "a": strings.Repeat("#", fileMax)})
		if len(probs) != 3 || !strings.Contains(probs[0].Text, "bytes together") {
			t.Errorf("got %d: %v", len(probs), probs)
		}
	})
	t.Run("bytes of one", func(t *testing.T) {
		_, probs, _ := load(t, map[string]string{"slurm.conf": "include a\n", "a": strings.Repeat("#", fileMax+1)})
		if len(probs) != 1 || !strings.Contains(probs[0].Text, "more than 4194304 bytes") {
			t.Errorf("got %d: %v", len(probs), probs)
		}
	})
	t.Run("a FIFO does not hold us", func(t *testing.T) {
		dir := write(t, map[string]string{"slurm.conf": "include fifo\ninclude /dev/null\n"})
		if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm")
		if err != nil || len(probs) != 1 || !strings.Contains(probs[0].Text, "not a regular file") {
			t.Errorf("got %v, %v", probs, err)
		}
	})
}
