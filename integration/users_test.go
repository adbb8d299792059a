package integration

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"syscall"
	"testing"
)

// account is a user that the tests made.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32
}

// The ids are the recorded traces'.
var (
	alice = account{name: "stepdt1", uid: 7001, gid: 7001, groups: []uint32{7001, 7101, 7102}}
	bob   = account{name: "stepdt2", uid: 7002, gid: 7002, groups: []uint32{7002}}
)

// testUser returns the user that steps run as.
func testUser(testing.TB) account { return alice }

// TestMain makes the users and removes them.
func TestMain(m *testing.M) {
	if os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	syscall.Umask(0o022) // as in the traces
	// The users are the machine's: another run of these tests must be over.
	lock, err := os.OpenFile("/run/lock/stepd-integration", os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot wait for other runs of the tests: %v\n", err)
		os.Exit(1)
	}
	made, err := makeAccounts()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot make the tests' users: %v\n", err)
		removeAccounts(made)
		os.Exit(1)
	}
	code := m.Run()
	removeAccounts(made)
	lock.Close() // not before: the collector closes what is not used any more
	os.Exit(code)
}

// makeAccounts returns the commands that undo what it did. What a broken run
// has left is taken away first.
func makeAccounts() (undo [][]string, err error) {
	removeAccounts([][]string{
		{"groupdel", "stepdg2"}, {"groupdel", "stepdg1"}, {"groupdel", bob.name}, {"groupdel", alice.name},
		{"userdel", "-f", bob.name}, {"userdel", "-f", alice.name},
	})
	groups := []struct{ name, gid string }{
		{alice.name, "7001"}, {bob.name, "7002"}, {"stepdg1", "7101"}, {"stepdg2", "7102"},
	}
	for _, g := range groups {
		if err := command("groupadd", "-g", g.gid, g.name); err != nil {
			return undo, err
		}
		undo = append(undo, []string{"groupdel", g.name})
	}
	for _, a := range []account{alice, bob} {
		args := []string{"-u", fmt.Sprint(a.uid), "-g", fmt.Sprint(a.gid), "-M", "-d", "/nonexistent", "-s", "/bin/bash"}
		if a.uid == alice.uid {
			args = append(args, "-G", "7101,7102")
		}
		if err := command("useradd", append(args, a.name)...); err != nil {
			return undo, err
		}
		undo = append(undo, []string{"userdel", "-f", a.name})
	}
	return undo, nil
}

// removeAccounts runs undo backwards, and passes over what is gone already:
// userdel takes the user's own group with it.
func removeAccounts(undo [][]string) {
	for i := len(undo) - 1; i >= 0; i-- {
		name := undo[i][len(undo[i])-1]
		var err error
		if undo[i][0] == "groupdel" {
			_, err = user.LookupGroup(name)
		} else {
			_, err = user.Lookup(name)
		}
		if err != nil {
			continue
		}
		if err := command(undo[i][0], undo[i][1:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func command(name string, args ...string) error {
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}
