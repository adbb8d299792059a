package srunopt

import (
	"strings"
	"testing"

	"stepd/step"
)

func patternSpec() *step.Spec {
	return &step.Spec{Request: step.Request{Name: "echo"}, ID: step.ID{Job: 77}, User: step.User{Name: "guser1"}, NodeName: "vm"}
}

// The expected names are those recorded of srun.
func TestExpandPattern(t *testing.T) {
	s := patternSpec()
	tests := []struct{ pattern, want string }{
		{"pat_%t_%j_%J_%s_%n_%N_%u_%x_%%_%2t_%A_%a", "pat_1_77_77.0_0_0_vm_guser1_echo_%_01_77_4294967294"},
		{"plain", "plain"},
		{"%", "%"},
		{"%5", "%5"},
		{"%q%t", "%q1"},
		{"%12t", "0000000001"},
		{"%99999999999999999999t", "0000000001"},
		{"", ""},
		{`\%t-%j`, "%t-%j"},
		{`a\\%t`, `a\%t`},
		{`%t\`, "%t"},
		{"job%4j.%3n.%2s", "job0077.000.00"},
	}
	for _, tt := range tests {
		got, err := ExpandPattern(tt.pattern, s, 1)
		if err != nil || got != tt.want {
			t.Errorf("ExpandPattern(%q) = %q, %v; want %q", tt.pattern, got, err, tt.want)
		}
	}
	if got, err := ExpandPattern(strings.Repeat("x", 5000), s, 0); err == nil {
		t.Errorf("a name of %d bytes was accepted", len(got))
	}
}

func FuzzExpandPattern(f *testing.F) {
	f.Add("%t %5j %% %")
	f.Add("%%%")
	s := patternSpec()
	f.Fuzz(func(t *testing.T, pattern string) {
		a, err := ExpandPattern(pattern, s, 0)
		if err != nil {
			return
		}
		if len(a) >= 4096 {
			t.Fatalf("name of %d bytes", len(a))
		}
		b, err := ExpandPattern(pattern, s, 1)
		if strings.Contains(pattern, `\`) && strings.ReplaceAll(pattern, `\`, "") != strings.ReplaceAll(a, `\`, "") {
			t.Fatalf("escaped pattern %q became %q", pattern, a)
		}
		if err == nil && (a != b) != PatternHas(pattern, "t") {
			t.Fatalf("PatternHas(%q, t) = %v, names %q and %q", pattern, PatternHas(pattern, "t"), a, b)
		}
	})
}

func TestPatternHas(t *testing.T) {
	for pattern, want := range map[string]bool{"out": false, "%j.%J": false, "%t": true, "%4n": true, "a%N": true, "%%t": false, "%%%t": true, "%": false, `\%t`: false, "%5": false} {
		if got := PatternHas(pattern, "tnN"); got != want {
			t.Errorf("PatternHas(%q) = %v", pattern, got)
		}
	}
}
