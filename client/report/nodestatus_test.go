package report

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestNodeStatusScreen: the node document, as people see it; control characters of
// others do not reach the terminal.
var update = flag.Bool("update", false, "write the golden files anew")

func TestNodeStatusScreen(t *testing.T) {
	for name, doc := range map[string]string{
		"busy": `{"name":"n1","state":"DRAINING","reason":"Kill task failed: step 12.0: 1 left: pid 4711 \"cp\" (state D: uninterruptible sleep in nfs_wait, read of fd 3 \"/home/日本\u001b[2J\" on nfs4 mount \"/home\")","drained_since":"2026-11-22T09:00:00Z","drained_by":"root (logged in as uid 1000)","cpus":8,"free_cpus":3,"memory_bytes":16777216000,"memory_usable_mb":15000,"memory_used_mb":700,
			"proctrack":"cgroup/v2","container":"tmpfs","gres":[{"name":"gpu","type":"a100","count":2,"used":1,"used_index":"0"},{"name":"disk","count":5,"used":0}],
			"fallbacks":[{"what":"CPU binding","why":"NodeName CPUs=8 is more than the machine has"}],
			"jobs":[{"job_id":12,"user":"alice","name":"sim\u001b[31m","cpus":"0-3","memory_mb":700,"gres":"gpu:a100:1","steps":[0,1]},
				{"job_id":13,"user":"bob","name":"x","cpus":"4","suspended":"2026-11-22T10:00:00Z","memory_mb":null,"gres":"","steps":[4294967291]}],
			"unkillable":[{"since":"2026-11-22T09:00:00Z","text":"step 12.0: 1 left: pid 4711 \"cp\" (state D)"}],
			"daemon":{"pid":99,"goroutines":30,"open_files":41,"heap_bytes":9437184},
			"plugins":[{"path":"/l/a.so","file":"/e/plugstack.conf","line":3,"required":true,"state":"found","release":"23.11","problem":""},
				{"path":"/e/plugstack.conf","file":"/e/plugstack.conf","line":7,"state":"error","problem":"there is no such word"}]}`,
		"idle": `{"name":"n2","state":"IDLE","reason":"","cpus":2,"free_cpus":2,"memory_bytes":1073741824,"proctrack":"linuxproc","container":"none","gres":[],"fallbacks":[],"jobs":[],"unkillable":[],"plugins":[]}`,
	} {
		for _, columns := range []int{0, 40, 80, 200} {
			var b bytes.Buffer
			if err := showNode(&b, []byte(doc), columns); err != nil {
				t.Fatal(err)
			}
			fits(t, b.String(), columns)
			isGolden(t, fmt.Sprintf("nodestatus-%s-%d", name, columns), b.String())
		}
	}
}

// isGolden compares a screen with its file.
func isGolden(t *testing.T, name, got string) {
	t.Helper()
	golden := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s (go test ./client/report -update writes it): got\n%s\nwant\n%s", name, got, want)
	}
}
