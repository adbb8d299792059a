package slurmconf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestSettings(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("more.conf", "Odd=\"a b\"\n")
	path := write("slurm.conf", "# a comment\nClusterName=c\nNodeName=n[1-2] CPUs=4 \\\n  Gres=gpu:1\nnot a line\nInclude more.conf\n")
	set, err := Settings(path)
	if err != nil {
		t.Fatal(err)
	}
	want := []Setting{
		{path, 2, "ClusterName", "c", ""}, {path, 3, "NodeName", "n[1-2]", ""}, {path, 3, "CPUs", "4", "n[1-2]"},
		{path, 3, "Gres", "gpu:1", "n[1-2]"}, {filepath.Join(dir, "more.conf"), 1, "Odd", "a b", ""},
	}
	if len(set) != len(want) {
		t.Fatalf("%+v", set)
	}
	for i := range want {
		if set[i] != want[i] {
			t.Errorf("%+v, want %+v", set[i], want[i])
		}
	}
	if got := set[4].String(); got != "more.conf:1: Odd=a b" {
		t.Errorf("%q", got)
	}
	if _, err := Settings(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// TestDigest changes with each file that is read, an included one and one beside it, and with
// nothing else.
func TestDigest(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	digest := func() string {
		c, err := LoadSlurmd(filepath.Join(dir, "slurm.conf"), "n1", "n1")
		if err != nil {
			t.Fatal(err)
		}
		return c.Control.Digest
	}
	write("slurm.conf", "ClusterName=c\nInclude more.conf\nNodeName=n1\n")
	write("more.conf", "KillWait=3\n")
	seen := map[string]bool{digest(): true}
	if len(digest()) != 64 || !seen[digest()] {
		t.Error("the digest of the same files is another")
	}
	// The last one includes none.
	for _, f := range [][2]string{{"more.conf", "KillWait=4\n"}, {"cgroup.conf", "ConstrainCores=yes\n"}, {"slurm.conf", "ClusterName=d\n"}} {
		write(f[0], f[1])
		if d := digest(); seen[d] {
			t.Errorf("%s has changed, and the digest has not", f[0])
		} else {
			seen[d] = true
		}
	}
}
