package linux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRootGrantUser: a user does with a file what it was granted, and no more, and another user
// nothing; where the file system has no access control lists, the file is the user's.
func TestRootGrantUser(t *testing.T) {
	top := shared(t)
	bare := filepath.Join(top, "bare")
	if err := os.Mkdir(bare, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("bare", bare, "ramfs", 0, "mode=0755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(bare, 0); err != nil {
			t.Error(err)
		}
	})
	for dir, want := range map[string]string{
		top:  fmt.Sprintf("owner 0, granted %[1]d; %[1]d: true true false false; %[2]d: false false false false", userUID, otherUID),
		bare: fmt.Sprintf("owner %[1]d, granted %[1]d; %[1]d: true true true true; %[2]d: false false false false", userUID, otherUID),
	} {
		path := filepath.Join(dir, "file")
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o700)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("#!/bin/sh\n")
		if err == nil {
			err = GrantUser(f, MayRead|MayWrite|MayExecute, userUID, MayRead|MayExecute)
		}
		if err != nil {
			t.Fatal(err)
		}
		user, err := GrantedUser(f)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err != nil {
			t.Fatal(err)
		}
		syscall.ForkLock.RLock() // no fork of another test has it open for writing
		f.Close()
		syscall.ForkLock.RUnlock()
		got := fmt.Sprintf("owner %d, granted %d", st.Sys().(*syscall.Stat_t).Uid, user)
		for _, uid := range []uint32{userUID, otherUID} {
			var may []string
			for _, command := range []string{"cat %s", "%s", "echo >>%s", "chmod 700 %s"} {
				cmd := exec.Command("sh", "-c", fmt.Sprintf(command, path))
				cmd.Dir = "/"
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
				may = append(may, fmt.Sprint(cmd.Run() == nil)) // each is refused by its exit code
			}
			got += fmt.Sprintf("; %d: %s", uid, strings.Join(may, " "))
		}
		if got != want {
			t.Errorf("in %s got %s, want %s", dir, got, want)
		}
	}
}
