package step

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPackKeepsEveryByte(t *testing.T) {
	every := make([]byte, 255)
	for i := range every {
		every[i] = byte(i + 1)
	}
	argv := []string{"prog", string(every), "ok", "caf\xe9", ""}
	env := []string{"A=b", "LATIN=\xff\xfe"}
	r := Request{Argv: argv, Env: env}
	r.Pack()
	if argv[1] != string(every) {
		t.Error("the caller's list was changed")
	}
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got Request
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if err := got.Unpack(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(argv, got.Argv); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(env, got.Env); d != "" {
		t.Error(d)
	}
	for _, bad := range []map[int]string{{7: "eA=="}, {-1: "eA=="}, {0: "!"}} {
		r := Request{Argv: []string{"x"}, ArgvBinary: bad}
		if err := r.Unpack(); err == nil {
			t.Errorf("%v was accepted", bad)
		}
	}
}
