package options

import (
	"testing"

	"stepd/srunopt"
)

func TestImmediate(t *testing.T) {
	seconds := func(n int) *int { return &n }
	for in, want := range map[string]*int{"": nil, "0": seconds(0), "1": seconds(1), "inf": seconds(srunopt.WaitForever), "3600": seconds(3600)} {
		got, err := Immediate(in).Seconds()
		if err != nil || (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: got %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"-1", "soon", "1.5", "99999999999"} {
		if got, err := Immediate(in).Seconds(); err == nil {
			t.Errorf("%q was read as %d", in, *got)
		}
	}
	o, _, err := parse(t, "-I", "true")
	if err != nil || o.Immediate != "1" {
		t.Errorf("-I: %q, %v", o.Immediate, err)
	}
}
