package slurmstepd

import (
	"testing"

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
		step           uint32
		want           string
	}{
		{null, file, 0, "/tmp/4"},
		{file, same, 0, "/tmp/4"},
		{file, null, 0, ""},
		{file, step.Stream{Kind: step.StreamClient}, 0, ""},
		{file, file, step.BatchStep, ""},
	} {
		spec := &step.Spec{Request: step.Request{Stdout: c.stdout, Stderr: c.stderr}, ID: step.ID{Step: c.step}}
		if got, err := stderrFile(spec, []int{4, 5}); err != nil || got != c.want {
			t.Errorf("stdout %v, stderr %v: messages go to %q, %v, want %q", c.stdout.Kind, c.stderr.Kind, got, err, c.want)
		}
	}
}
