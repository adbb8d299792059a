package main

import (
	"os"
	"testing"

	"stepd/node/fakestepd"
)

func TestMain(m *testing.M) {
	if fakestepd.Is() {
		fakestepd.Main()
	}
	os.Exit(m.Run())
}

func write(t testing.TB, path, text string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
