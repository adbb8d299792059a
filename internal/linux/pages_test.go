package linux

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// programKB is how much of the program's file is in this process's memory, in kB.
func programKB(t *testing.T) (kb int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if _, ok := strings.CutPrefix(line, "RssFile:"); ok {
			if _, err := fmt.Sscanf(line, "RssFile: %d", &kb); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kb
}

// TestDropProgramPages: pages leave the memory, and the program runs on.
func TestDropProgramPages(t *testing.T) {
	before := programKB(t)
	if err := DropProgramPages(); err != nil {
		t.Fatal(err)
	}
	if after := programKB(t); after > before-200 {
		t.Errorf("%d kB of the program are in memory, %d before", after, before)
	}
}
