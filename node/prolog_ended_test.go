package node

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestPrologOfEndedAllocation: a prolog is run to its end where the allocation ends before,
// and the epilog comes after it.
func TestPrologOfEndedAllocation(t *testing.T) {
	gate := filepath.Join(t.TempDir(), "gate")
	if err := syscall.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s := newScripted(t, "read x <"+gate+"\nprintf 'ended \\n' >>$0.out", "test -e ${0%/*}/prolog.sh.out", func(c *Config) { c.Scripts.AtAlloc = true })
	c := newClient(t, 1000)
	answer := make(chan error, 1)
	go func() { _, err := s.alloc(c, nil); answer <- err }()
	open, err := os.OpenFile(gate, os.O_WRONLY, 0) // when the prolog runs
	if err != nil {
		t.Fatal(err)
	}
	j := s.reg.job(1)
	c.kill()
	for !s.reg.isShut(j) {
		time.Sleep(time.Millisecond)
	}
	select {
	case <-j.ended:
		t.Error("the job has ended beside its prolog")
	case <-time.After(100 * time.Millisecond): // as long as it would take
	}
	open.Close()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	s.idle()
	s.wantTold("prolog.sh", "epilog.sh")
	if d := s.doc(); d.State == "DRAINED" { // as the epilog does that comes before
		t.Errorf("node %+v", d)
	}
}
