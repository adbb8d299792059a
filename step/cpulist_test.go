package step

import (
	"slices"
	"testing"
)

func TestCPUList(t *testing.T) {
	for text, cpus := range map[string][]int{
		"":        nil,
		"0":       {0},
		"0-2":     {0, 1, 2},
		"0-1,3":   {0, 1, 3},
		"1,3,5-7": {1, 3, 5, 6, 7},
	} {
		if got := FormatCPUList(cpus); got != text {
			t.Errorf("FormatCPUList(%v) = %q, want %q", cpus, got, text)
		}
		if got, err := ParseCPUList(text); err != nil || !slices.Equal(got, cpus) {
			t.Errorf("ParseCPUList(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{",", "1,", "a", "-1", "2-1", "1,1", "3,2", "0-99999999", "1-2-3", " 1"} {
		if got, err := ParseCPUList(text); err == nil {
			t.Errorf("ParseCPUList(%q) = %v, want an error", text, got)
		}
	}
}

func FuzzParseCPUList(f *testing.F) {
	for _, s := range []string{"", "0-2", "0,2-3", "65535", "1-", "0-0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		cpus, err := ParseCPUList(s)
		if err != nil {
			return
		}
		again, err := ParseCPUList(FormatCPUList(cpus))
		if err != nil || !slices.Equal(cpus, again) {
			t.Fatalf("%q: %v, then %v (%v)", s, cpus, again, err)
		}
	})
}
