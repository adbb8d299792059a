package explain

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestUnkillableRemedies: what helps with a process that SIGKILL does not end is the same in an
// explanation and in docs/troubleshooting.md.
func TestUnkillableRemedies(t *testing.T) {
	text, err := os.ReadFile("../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	plain := strings.ReplaceAll(strings.Join(strings.Fields(string(text)), " "), "`", "")
	found := regexp.MustCompile(`(?m)^survivor (\S+) \| (.*)$`).FindAllStringSubmatch(hints, -1)
	if len(found) < 6 {
		t.Fatalf("%d kinds of processes have a hint", len(found))
	}
	for _, h := range found {
		_, of, _ := strings.Cut(plain, " - "+h[1]+": ")
		_, helps, _ := strings.Cut(of, "What helps: ")
		if !strings.HasPrefix(helps, h[2]) {
			t.Errorf("%s: the hint is %q, and the document has %.120q", h[1], h[2], helps)
		}
	}
}
