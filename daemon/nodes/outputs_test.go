package nodes

import (
	"os"
	"os/exec"
	"testing"
	"time"
)

// Drain waits for no stream that nobody can write to, and names who holds another one open
// after the limit; that one ends then.
func TestDrain(t *testing.T) {
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close(); w.Close() })
		return r, w
	}
	held, holder := pipe()
	quiet, ended := pipe()
	passed, _ := pipe()
	ended.Close()
	passed.Close() // the tree has read it to its end
	tree := &Tree{outs: []taskOutput{{1, 3, held}, {2, 3, quiet}, {1, 4, passed}}}
	cmd := exec.Command("sleep", "1000")
	cmd.ExtraFiles = []*os.File{holder}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	holder.Close()
	got := tree.Drain(50 * time.Millisecond)
	if len(got) != 1 || got[0].FD != 1 || got[0].Rank != 3 || got[0].PID != cmd.Process.Pid || got[0].Command != "sleep 1000" {
		t.Errorf("held: %+v", got)
	}
	if _, err := held.Read(make([]byte, 1)); err == nil {
		t.Error("it is still read from")
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	tree.outs = []taskOutput{{1, 3, held}}
	begin := time.Now()
	if got := tree.Drain(20 * time.Second); len(got) > 0 || time.Since(begin) > 10*time.Second {
		t.Errorf("after %v, with nobody left: %+v", time.Since(begin), got)
	}
}
