package linux

import (
	"strings"
	"testing"
)

const statLine = "89653 (gunicorn: ) S 1 (x) S 89630 89653 89653 0 -1 4194560 29689 28896 0 3 146 32 76 19 20 0 1 0 2971844 52965376 3920 18446744073709551615 1 1 0\n"

func TestParseStart(t *testing.T) {
	if start, err := parseStart([]byte(statLine)); err != nil || start != 2971844 {
		t.Errorf("start %d, %v", start, err)
	}
	for _, text := range []string{"", "89653", "1 (x) S 1 2 3", strings.Replace(statLine, "2971844", "-1", 1)} {
		if start, err := parseStart([]byte(text)); err == nil {
			t.Errorf("%q: start %d", text, start)
		}
	}
}

func FuzzParseStart(f *testing.F) {
	f.Add(statLine)
	f.Add("1 (")
	f.Fuzz(func(t *testing.T, text string) {
		if start, err := parseStart([]byte(text)); err != nil && start != 0 && !strings.Contains(err.Error(), "range") {
			t.Fatalf("%d, %v", start, err)
		}
	})
}
