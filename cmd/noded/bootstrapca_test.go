package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"stepd/api"
)

// TestBootstrapCA: what it makes is what noded takes, and it replaces nothing.
func TestBootstrapCA(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	if err := bootstrapCA(dir, []string{"n[1-2]", "m"}); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 8 {
		t.Fatalf("%d files, %v", len(entries), err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", e.Name(), info.Mode(), err)
		}
	}
	for _, name := range []string{"n1", "n2", "m"} {
		p := api.PeerTLS{Certificate: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key"), CA: filepath.Join(dir, "ca.pem"), Node: name}
		if expired, err := p.Check(); expired != nil || err != nil {
			t.Errorf("%s: %v, %v", name, expired, err)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	for words, lists := range map[string][]string{
		"exists: remove it": {"n3"}, "name the nodes": nil, `node "ca"`: {"ca"}, `node "a/b"`: {"a/b"}, "cannot expand host list": {"n[1"},
	} {
		if err := bootstrapCA(dir, lists); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v: %v, want %q", lists, err, words)
		}
	}
	after, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil || string(after) != string(before) {
		t.Errorf("ca.pem was changed: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "n3.pem")); err == nil {
		t.Error("half a set was made")
	}
}
