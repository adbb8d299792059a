package archive

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"stepd/internal/testkit"
	"stepd/step"
)

// TestRootReader: a step's user reads its event log and its record, and writes neither; another
// user does not read them. A step whose daemon has died keeps its reader.
func TestRootReader(t *testing.T) {
	testkit.RequireRoot(t)
	dir, err := os.MkdirTemp("/var/tmp", "archive") // where any user may go
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	a, id := In(dir), step.ID{Job: 12}
	f, err := a.Create(id, 7001)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := a.Lose(&step.Record{ID: id}, "it was killed"); err != nil {
		t.Fatal(err)
	}
	can := func(uid uint32, command string) bool {
		t.Helper()
		cmd := exec.Command("sh", "-c", command)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err != nil && !strings.Contains(string(out), "ermi") {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return err == nil
	}
	for _, end := range []string{eventsEnd, recordEnd} {
		path := filepath.Join(string(a), id.Key()+end)
		if got := []bool{can(7001, "cat "+path), can(7002, "cat "+path), can(7001, "echo x >>"+path), can(7001, "chmod 666 "+path)}; !got[0] || got[1] || got[2] || got[3] {
			t.Errorf("%s: the user reads it %v, another one %v, the user writes %v, and changes its mode %v", end, got[0], got[1], got[2], got[3])
		}
	}
}

// TestReader: the list that is written is the one that is read.
func TestReader(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	own := uint32(os.Geteuid())
	if err := grant(f, own); err != nil {
		t.Fatal(err)
	}
	if uid, err := reader(f); uid != own || err != nil {
		t.Errorf("the owner is user %d, %v", uid, err)
	}
	if err := grant(f, own+7); err != nil && !errors.Is(err, os.ErrPermission) {
		t.Fatal(err)
	} else if uid, rerr := reader(f); err == nil && uid != own+7 || rerr != nil {
		t.Errorf("the reader is user %d, %v", uid, rerr)
	}
}
