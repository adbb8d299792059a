package slurmconf

import (
	"slices"
	"strings"
	"testing"
)

func TestDebugFlags(t *testing.T) {
	all := "Cgroup,CPU_Bind,Gres,JobAccountGather,JobContainer,Steps"
	if flags, f := debugFlags(strings.ToUpper(all) + ",TraceJobs"); f != nil || strings.Join(flags, ",") != all {
		t.Errorf("%q, %+v", flags, f)
	}
	if flags, f := debugFlags("Frob,gres"); f == nil || f.severity != SeverityWarning || !slices.Equal(flags, []string{"Gres"}) {
		t.Errorf("%q, %+v", flags, f)
	}
}

func TestPrologFlags(t *testing.T) {
	for _, c := range []struct {
		value, words string // "" is nothing wrong
		severity     Severity
	}{
		{"Alloc", "", ""}, {"alloc,NoHold", "", ""}, {"DeferBatch,NoHold,Serial", "", ""}, {"Contain,RunInJob", "", ""},
		{"Contain,ForceRequeueOnFail", "a batch job whose prolog fails is FAILED", SeverityWarning},
		{"NoHold", "no effect without Alloc", SeverityWarning},
		{"X11", "X11 is not forwarded here", SeverityWarning},
		{"Alloc,Frob", `"Frob" is not known`, SeverityWarning},
		{"Alloc,NoHold,Contain", "NoHold lets an allocation be answered", SeverityError},
		{"nohold,x11", "NoHold lets an allocation be answered", SeverityError},
		{"NoHold,RunInJob", "NoHold lets an allocation be answered", SeverityError},
		{"Serial,RunInJob", "exclude each other", SeverityError},
	} {
		flags, f := prologFlags(c.value)
		switch {
		case f == nil && c.words == "":
			if !slices.Equal(flags, strings.Split(c.value, ",")) {
				t.Errorf("%s is read as %q", c.value, flags)
			}
		case f == nil || c.words == "":
			t.Errorf("%s: %+v, want %q", c.value, f, c.words)
		case !strings.Contains(f.why, c.words) || f.severity != c.severity:
			t.Errorf("%s: %+v, want %q", c.value, f, c.words)
		}
	}
}
