package pmix

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// headerNumbers reads every enumerator and #define of pmixhost/protocol.h.
func headerNumbers(t *testing.T) map[string]int64 {
	t.Helper()
	b, err := os.ReadFile("../pmixhost/protocol.h")
	if err != nil {
		t.Fatal(err)
	}
	nums := map[string]int64{}
	for _, re := range []string{`(?m)^\s*([A-Z][A-Z0-9_]+) = (-?\d+)`, `(?m)^#define ([A-Z][A-Z0-9_]+) (\d+)`} {
		for _, m := range regexp.MustCompile(re).FindAllStringSubmatch(string(b), -1) {
			if nums[m[1]], err = strconv.ParseInt(m[2], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(nums) < 90 {
		t.Fatalf("found %d numbers in protocol.h", len(nums))
	}
	return nums
}

// cName turns cmdNspace into CMD_NSPACE and vInt8 into V_INT8.
func cName(name string) string {
	special := map[string]string{
		"pmixhostFDControl": "PMIXHOST_FD_CONTROL", "pmixhostFDNamespace": "PMIXHOST_FD_NAMESPACE",
		"setupJoinNS": "SETUP_JOIN_NS", "vPID": "V_PID",
	}
	if c, ok := special[name]; ok {
		return c
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_${2}"))
}

func TestProtocolNumbers(t *testing.T) {
	c := headerNumbers(t)
	f, err := parser.ParseFile(token.NewFileSet(), "protocol.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(f, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		seen++
		name, sign, value := v.Names[0].Name, int64(1), v.Values[0]
		if minus, ok := value.(*ast.UnaryExpr); ok {
			sign, value = -1, minus.X
		}
		here, err := strconv.ParseInt(value.(*ast.BasicLit).Value, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		switch want, ok := c[cName(name)]; {
		case !ok:
			t.Errorf("%s is %d here, and protocol.h has no %s", name, sign*here, cName(name))
		case want != sign*here:
			t.Errorf("%s is %d here, %s is %d in protocol.h", name, sign*here, cName(name), want)
		}
		return true
	})
	if seen < 85 {
		t.Errorf("found %d constants", seen)
	}
}
