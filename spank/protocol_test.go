package spank

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"stepd/step/launch"
)

// headerNumbers reads every enumerator and #define of host/protocol.h.
func headerNumbers(t *testing.T) map[string]uint64 {
	t.Helper()
	b, err := os.ReadFile("host/protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	nums := map[string]uint64{}
	for _, re := range []string{`(?m)^\s*([A-Z][A-Z0-9_]+) = (0x[0-9a-f]+|\d+)`, `(?m)^#define ([A-Z][A-Z0-9_]+) (0x[0-9a-f]+|\d+)u?`} {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(string(b), -1) {
			n, err := strconv.ParseUint(m[2], 0, 64)
			if err != nil {
				t.Fatal(err)
			}
			nums[m[1]] = n
		}
	}
	if len(nums) < 80 {
		t.Fatalf("found %d numbers in protocol.h", len(nums))
	}
	return nums
}

// goNumbers reads the constants of protocol.go from its source, so that one
// that is added is compared without being listed here.
func goNumbers(t *testing.T) map[string]uint64 {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "protocol.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	nums := map[string]uint64{}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if lit, ok := v.Values[0].(*ast.BasicLit); ok {
				if n, err := strconv.ParseUint(lit.Value, 0, 64); err == nil {
					nums[v.Names[0].Name] = n
				}
			}
		}
		return true
	})
	return nums
}

// cName turns cmdUserInit into CMD_USER_INIT.
func cName(name string) string {
	special := map[string]string{
		"hostProtocolVersion": "HOST_PROTOCOL_VERSION", "hostFDControl": "HOST_FD_CONTROL", "hostFDLog": "HOST_FD_LOG",
		"hostPacketMax": "HOST_PACKET_MAX", "hostFDsMax": "HOST_FDS_MAX", "hostFDTable": "HOST_FD_TABLE_MAX",
		"cmdFDs": "CMD_FDS", "pluginHasSpank": "PLUGIN_HAS_SPANK_VERSION", "tagNNodes": "TAG_NNODES", "tagNodeID": "TAG_NODEID",
		"tagNCPUs": "TAG_NCPUS", "tagCPUsPerTask": "TAG_CPUS_PER_TASK", "tagGlobalIDs": "TAG_GLOBAL_IDS", "tagJoinNS": "TAG_JOIN_NS",
		"tagOOMScore": "TAG_OOM_SCORE", "tagTaskFD": "TAG_TASK_FD", "tagUID": "TAG_UID", "tagGID": "TAG_GID",
		"tagJobID": "TAG_JOB_ID", "tagStepID": "TAG_STEP_ID", "tagArrayID": "TAG_ARRAY_ID",
	}
	if c, ok := special[name]; ok {
		return c
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

func TestProtocolNumbers(t *testing.T) {
	c := headerNumbers(t)
	for name, n := range goNumbers(t) {
		if name == "boardHeader" || name == "boardSlotSize" || name == "boardEntrySize" {
			continue // sizes of structs: the board's own test holds them
		}
		want, ok := c[cName(name)]
		switch {
		case !ok:
			t.Errorf("%s is %d here, and protocol.h has no %s", name, n, cName(name))
		case want != n:
			t.Errorf("%s is %d here, %s is %d in protocol.h", name, n, cName(name), want)
		}
	}
	for kind, name := range map[launch.TaskStreamKind]string{launch.StreamToNull: "STREAM_NULL", launch.StreamToHandle: "STREAM_FD",
		launch.StreamToPath: "STREAM_FILE", launch.StreamToStdout: "STREAM_SAME",
		launch.StreamToEarlyPath: "STREAM_EARLY", launch.StreamToTerminal: "STREAM_TERMINAL"} {
		if c[name] != uint64(kind) {
			t.Errorf("stream kind %d, %s is %d in protocol.h", kind, name, c[name])
		}
	}
	for level, name := range map[launch.LogLevel]string{launch.LogError: "LEVEL_ERROR", launch.LogInfo: "LEVEL_INFO",
		launch.LogVerbose: "LEVEL_VERBOSE", launch.LogDebug: "LEVEL_DEBUG", launch.LogSpank: "LEVEL_SPANK_LOG",
		launch.LogWarning: "LEVEL_WARNING"} {
		if c[name] != uint64(level) {
			t.Errorf("log level %d, %s is %d in protocol.h", level, name, c[name])
		}
	}
}

// The board's records as the C side lays them out: natural alignment.
func TestBoardLayout(t *testing.T) {
	b, err := newBoard(3, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer b.close()
	if len(b.mem) != boardHeader+4*boardSlotSize+2*(10+12)*boardEntrySize {
		t.Errorf("the board has %d bytes", len(b.mem))
	}
	if w, fault := b.where(2); w.InHook() || w.Plugin != -1 || fault != 0 {
		t.Errorf("a fresh slot says %+v", w)
	}
	// What a plugin may have written there must not lead us astray.
	for i := range b.mem {
		b.mem[i] = 0xff
	}
	if w, _ := b.where(1); w.Hook != "" && w.Plugin > 1<<16 {
		t.Errorf("a corrupted slot says %+v", w)
	}
	hooks, _ := b.journal(0, true)
	if len(hooks) > b.entries {
		t.Errorf("a corrupted journal has %d entries", len(hooks))
	}
	if w, _ := b.where(99); w.Plugin != -1 {
		t.Errorf("a slot beyond the board says %+v", w)
	}
}

func FuzzParseRecord(f *testing.F) {
	w := &writer{}
	w.U32(recLog)
	w.U32(1)
	w.U32(noRank)
	w.U32(0)
	w.U32(4)
	w.Str("text")
	f.Add(w.B)
	w = &writer{}
	w.U32(recFail)
	w.U32(0)
	w.U32(10)
	w.U32(2)
	w.Str("/no/such")
	w.Str("it does not exist")
	f.Add(w.B)
	w = &writer{}
	w.U32(recLimit)
	w.U32(1)
	w.U64(1 << 20)
	w.U64(^uint64(0))
	w.Str("NOFILE")
	f.Add(w.B)
	f.Add([]byte{})
	h := &Host{names: []string{"x.so"}, ranks: []int{4, 9}}
	f.Fuzz(func(t *testing.T, b []byte) {
		rec, ok := h.parseRecord(b)
		if ok && rec.Fail != nil && (rec.LocalID < 0 || rec.LocalID > 1 || rec.Fail.Rank != h.ranks[rec.LocalID]) {
			t.Fatalf("task %d is rank %d", rec.LocalID, rec.Fail.Rank)
		}
		if ok && rec.Limit == nil && len(rec.Text) > len(b)+len("plugin \"unknown plugin\": slurm_spank_task_init_privileged: ") {
			t.Fatalf("%d bytes of text from %d", len(rec.Text), len(b))
		}
	})
}
