package srunopt

import "testing"

func TestParseAcctgFreq(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int // -1 nil, -2 an error
	}{
		{"30", 30}, {"0", 0}, {"task=5", 5}, {"Task=5,energy=30", 5}, {"energy=30", -1}, {"65533", 65533},
		{"", -2}, {"-1", -2}, {"task=", -2}, {"task=often", -2}, {"65534", -2}, {"cpu=3", -2}, {"task=1,", -2},
	} {
		got, err := ParseAcctgFreq(tt.in)
		switch {
		case tt.want == -2 && err == nil:
			t.Errorf("%q: no error", tt.in)
		case tt.want == -1 && (err != nil || got != nil):
			t.Errorf("%q: %v, %v", tt.in, got, err)
		case tt.want >= 0 && (err != nil || got == nil || *got != tt.want):
			t.Errorf("%q: %v, %v; want %d", tt.in, got, err, tt.want)
		}
	}
}

func FuzzParseAcctgFreq(f *testing.F) {
	f.Add("task=5,energy=0")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseAcctgFreq(s); err == nil && n != nil && (*n < 0 || *n > acctgFreqMax) {
			t.Fatalf("%q: %d", s, *n)
		}
	})
}
