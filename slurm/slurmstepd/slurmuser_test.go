package slurmstepd

import (
	"strings"
	"testing"
)

func TestUIDOf(t *testing.T) {
	for name, want := range map[string]uint32{"root": 0, "4711": 4711, "daemon": 1} {
		if uid, err := uidOf(name); err != nil || uid != want {
			t.Errorf("uidOf(%q) = %d, %v", name, uid, err)
		}
	}
	if _, err := uidOf("no-such-user"); err == nil || !strings.Contains(err.Error(), `cannot look up user "no-such-user"`) {
		t.Errorf("an unknown user: %v", err)
	}
	if _, err := uidOf("-z"); err == nil {
		t.Error("an option was a user")
	}
}
