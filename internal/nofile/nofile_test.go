package nofile_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/nofile"
)

// TestAtStart: the limit is the one that the process was started with, and not the one that
// package syscall has made of it.
func TestAtStart(t *testing.T) {
	const asked = "NOFILE_TEST"
	if os.Getenv(asked) != "" {
		soft, ok := nofile.AtStart()
		var now unix.Rlimit
		err := unix.Getrlimit(unix.RLIMIT_NOFILE, &now)
		fmt.Println(soft, ok, now.Cur > soft, err)
		os.Exit(0)
	}
	c := exec.Command("/bin/sh", "-c", `ulimit -Sn 123 && exec "$0" -test.run TestAtStart`, os.Args[0])
	c.Env = append(os.Environ(), asked+"=1")
	if out, err := c.CombinedOutput(); err != nil || string(out) != "123 true true <nil>\n" {
		t.Errorf("got %q, %v", out, err)
	}
}
