package jobcontainer

import (
	"fmt"
	"strings"
	"testing"
)

func TestTailKeepsTheEnd(t *testing.T) {
	var out tail
	for i := range 1000 {
		fmt.Fprintf(&out, "line %d\n", i)
	}
	if len(out.b) > scriptOutputMax {
		t.Fatalf("%d bytes kept, at most %d", len(out.b), scriptOutputMax)
	}
	q := out.quoted()
	if !strings.HasSuffix(q, `line 999"`) || strings.Contains(q, "\n") {
		t.Errorf("quoted is not one line with the end of the output: %q", q)
	}
	if n, _ := out.Write([]byte(strings.Repeat("x", 3*scriptOutputMax))); n != 3*scriptOutputMax || len(out.b) != scriptOutputMax {
		t.Errorf("one large write: %d taken, %d kept", n, len(out.b))
	}
	if q := (&tail{}).quoted(); q != "" {
		t.Errorf("no output quoted as %q", q)
	}
}
