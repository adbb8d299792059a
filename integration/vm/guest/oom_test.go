package guest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestGuestMachineOutOfMemory: the machine has no memory left, and the kernel
// ends its largest process, which is a task's. It is made to look for one: to
// fill the machine first throws out, page by page, the programs that run.
func TestGuestMachineOutOfMemory(t *testing.T) {
	startUnit(t)
	const script = `if [ $SLURM_PROCID = 1 ]; then exec dd if=/dev/zero of=/dev/null bs=400M; fi; exec sleep 3`
	var out bytes.Buffer
	client := exec.Command("stepctl", "run", "--uid=nobody", "-D", "/", "-O", "-n", "2", "sh", "-c", script)
	client.Stdout, client.Stderr = &out, &out
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a task of 400 MB", func() error {
		files, _ := filepath.Glob("/proc/[0-9]*/status") // the pattern is good
		for _, file := range files {
			status, err := os.ReadFile(file)
			if err != nil || !bytes.HasPrefix(status, []byte("Name:\tdd\n")) {
				continue
			}
			_, rest, _ := strings.Cut(string(status), "\nVmRSS:")
			var kb int
			if _, err := fmt.Sscan(rest, &kb); err == nil && kb >= 400<<10 {
				return os.WriteFile("/proc/sysrq-trigger", []byte("f"), 0)
			}
		}
		return errors.New("there is none")
	})
	err := client.Wait()
	if end, ok := errors.AsType[*exec.ExitError](err); !ok || end.ExitCode() != 137 {
		t.Errorf("%v, want exit code 137: %s", err, &out)
	}
	line := regexp.MustCompile(`error: task 1: Out Of Memory: the kernel killed process [0-9]+ \("dd"\): the machine has no memory left`)
	if !line.Match(out.Bytes()) {
		t.Errorf("stderr is %q, want %s", &out, line)
	}
	doc, err := exec.Command("stepctl", "ps", "--all", "--json").CombinedOutput()
	if err != nil || !strings.Contains(string(doc), `"OUT_OF_MEMORY"`) || !strings.Contains(string(doc), `"level":"machine"`) {
		t.Errorf("ps: %v: %s", err, doc)
	}
}
