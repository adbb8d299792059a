package integration

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
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

// The ids are those of the recorded traces.
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
	made, err := makeAccounts()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot make the tests' users: %v\n", err)
		removeAccounts(made)
		os.Exit(1)
	}
	code := m.Run()
	removeAccounts(made)
	os.Exit(code)
}

// makeAccounts returns the commands that undo what it did. What is there
// already with the right ids (another suite beside us) stays.
func makeAccounts() (undo [][]string, err error) {
	groups := []struct{ name, gid string }{
		{"stepdt1", "7001"}, {"stepdt2", "7002"}, {"stepdg1", "7101"}, {"stepdg2", "7102"},
	}
	for _, g := range groups {
		if _, err := user.LookupGroupId(g.gid); err == nil {
			continue
		}
		if err := command("groupadd", "-g", g.gid, g.name); err != nil {
			return undo, err
		}
		undo = append(undo, []string{"groupdel", g.name})
	}
	for _, a := range []account{alice, bob} {
		if u, err := user.LookupId(strconv.Itoa(int(a.uid))); err == nil {
			if u.Username != a.name {
				return undo, fmt.Errorf("uid %d belongs to %q: remove that user", a.uid, u.Username)
			}
			continue
		}
		args := []string{"-u", fmt.Sprint(a.uid), "-g", fmt.Sprint(a.gid), "-M", "-d", "/nonexistent", "-s", "/bin/bash"}
		if a.uid == alice.uid {
			args = append(args, "-G", "7101,7102")
		}
		if err := command("useradd", append(args, a.name)...); err != nil {
			return undo, err
		}
		undo = append(undo, []string{"userdel", a.name})
	}
	return undo, nil
}

// removeAccounts runs undo backwards. userdel takes the user's own group with
// it, so that a group may be gone already.
func removeAccounts(undo [][]string) {
	for i := len(undo) - 1; i >= 0; i-- {
		if undo[i][0] == "groupdel" {
			if _, err := user.LookupGroup(undo[i][1]); err != nil {
				continue
			}
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
