package linux

import (
	"fmt"
	"os"
	"testing"
)

// roleVar makes a process of this test binary play a part: a reaper takes the
// children of its whole process, the test runner's too, so it gets its own.
const roleVar = "LINUX_TEST_ROLE"

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(roleVar)
	if !ok {
		os.Exit(m.Run())
	}
	if err := playReaper(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
