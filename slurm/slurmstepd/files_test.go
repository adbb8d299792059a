package slurmstepd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"stepd/slurm/stdio"
	"stepd/step"
)

func TestLabelFiles(t *testing.T) {
	file := step.Stream{Kind: step.StreamFile, Pattern: "out.%t", Append: true}
	spec := &step.Spec{Request: step.Request{Cwd: "/home/u", Stdout: file, Stderr: step.Stream{Kind: step.StreamSame}}}
	if files := labelFiles(spec); files[1].Path != nil || spec.Stdout != file {
		t.Errorf("without labels the tasks' stdout is %+v", spec.Stdout)
	}
	spec.Label = true
	files := labelFiles(spec)
	if path, err := files[1].Path(7); err != nil || path != "/home/u/out.7" || !files[1].Append {
		t.Errorf("the file of task 7 is %q, %v", path, err)
	}
	if spec.Stdout != (step.Stream{Kind: step.StreamClient}) || spec.Stderr.Kind != step.StreamSame || files[2].Path != nil {
		t.Errorf("with labels the tasks' streams are %+v and %+v", spec.Stdout, spec.Stderr)
	}
}

func TestStderrFile(t *testing.T) {
	file := step.Stream{Kind: step.StreamFile, Pattern: "/tmp/%t"}
	null := step.Stream{Kind: step.StreamNull}
	same := step.Stream{Kind: step.StreamSame}
	for _, c := range []struct {
		stdout, stderr step.Stream
		want           string
	}{
		{null, file, "/tmp/4"},
		{file, same, "/tmp/4"},
		{file, null, ""},
		{file, step.Stream{Kind: step.StreamClient}, ""},
	} {
		spec := &step.Spec{Request: step.Request{Stdout: c.stdout, Stderr: c.stderr}}
		if got, err := stderrFile(spec, 4); err != nil || got != c.want {
			t.Errorf("stdout %v, stderr %v: messages go to %q, %v, want %q", c.stdout.Kind, c.stderr.Kind, got, err, c.want)
		}
	}
}

// TestStderrFiles: each message is in its task's file, behind what the task has written.
func TestStderrFiles(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "4"), []byte("the task's\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	user := step.User{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), Groups: []uint32{uint32(os.Getgid())}}
	var others []string
	f := stderrFiles{
		opener: stdio.Opener{User: user, Umask: 0o077},
		path: func(rank int) (string, error) {
			switch rank {
			case 6:
				return "", nil
			case 7:
				return "/no/dir/7", nil
			case 8:
				return "", errors.New("no name")
			}
			return filepath.Join(dir, strconv.Itoa(rank)), nil
		},
		otherwise: func(line string) { others = append(others, line) },
	}
	for rank := 4; rank < 9; rank++ {
		f.say(rank, fmt.Sprintf("about %d", rank))
	}
	f.say(4, "again")
	f.close()
	f.say(4, "too late")
	f.close()
	for name, want := range map[string]string{"4": "the task's\nabout 4\nagain\n", "5": "about 5\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != want {
			t.Errorf("file %s has %q, %v, want %q", name, got, err, want)
		}
	}
	if !slices.Equal(others, []string{"about 7", "about 8"}) {
		t.Errorf("srun gets %q", others)
	}
}

// TestSizeMax: the limit is a number of bytes, the soft one, of the last such variable.
func TestSizeMax(t *testing.T) {
	for text, want := range map[string]int64{
		"": -1, "1024": 1024, "0": 0, "7:9": 7, "-1": -1, "18446744073709551615": -1, "x": -1, "5 SLURM_RLIMIT_FSIZE=6": 6,
	} {
		got := int64(-1)
		if most := sizeMax(strings.Fields("A=1 SLURM_RLIMIT_CPU=3 SLURM_RLIMIT_FSIZE=" + text)); most != nil {
			got = *most
		}
		if got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
		}
	}
	if most := sizeMax([]string{"A=1"}); most != nil {
		t.Errorf("without one: %d", *most)
	}
}
