package proctrack

import (
	"fmt"
	"os"
	"os/signal"
	"testing"

	"golang.org/x/sys/unix"

	"stepd/internal/linux"
	"stepd/internal/testkit"
)

// roleVar makes a process of this test binary play stepd for LinuxProc: it
// must be a subreaper with a reaper, which the test runner cannot be.
const roleVar = "PROCTRACK_TEST_ROLE"

func TestMain(m *testing.M) {
	role, ok := os.LookupEnv(roleVar)
	if !ok {
		os.Exit(m.Run())
	}
	if err := playStepd(role); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// wild are the things that tasks do to get away, as shell scripts that print
// "ready" when they have done them.
var wild = []struct {
	name, script string
	min          int // processes before the kill, at least
}{
	{"one process", `echo ready; exec sleep 1000`, 1},
	{"double-forked daemon", `( ( sh -c 'echo ready; exec sleep 1000' & ) & ) ; exec sleep 1000`, 2},
	{"own session", `setsid sh -c 'setsid sh -c "echo ready; exec sleep 1000" & exec sleep 1000' & wait`, 3},
	{"ignores every signal", `trap '' HUP INT QUIT TERM USR1 USR2; echo ready; while :; do sleep 1000; done`, 1},
	{"stopped", `sleep 1000 & kill -STOP $!; echo ready; kill -STOP $$`, 2},
	{"processes that keep forking", fmt.Sprintf(`i=0; while [ $i -lt %d ]; do (while :; do (exit 0); done) & i=$((i+1)); done; echo ready; wait`, testkit.Fewer(200)), testkit.Fewer(100)},
	{"without its first thread", fmt.Sprintf("%s=%s exec %q", roleVar, leaderless, testProgram()), 1},
	// It moves from process to process, and none lives for long.
	{"short-lived processes", `echo ready; exec >/dev/null; x='sh -c "$1" comet "$1" & exit 0'; exec sh -c "$x" comet "$x"`, 0},
}

// leaderless is the role of a process that ignores SIGTERM and whose first thread has ended.
const leaderless = "leaderless"

func testProgram() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

// init runs on the first thread.
func init() {
	if os.Getenv(roleVar) != leaderless {
		return
	}
	go func() {
		signal.Ignore(unix.SIGTERM)
		for {
			stat, err := os.ReadFile("/proc/self/stat")
			if err != nil {
				panic(err)
			}
			if _, f := linux.ParseStat(stat); f[0] == "Z" {
				break
			}
		}
		fmt.Println("ready")
		for {
			_ = unix.Pause()
		}
	}()
	_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0)
}
