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
