package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// bcastSize is that of a program with its libraries in it.
const bcastSize = 117 << 20

// broadcast is a step whose program is sent to the node, whole, digests and all; beside
// cp and sbcast of the same file, which compare none.
func broadcast(w *tabwriter.Writer, dir string, ours *noded, slurm *slurm, slurmErr error, quick bool) error {
	runs := 7
	if quick {
		runs = 3
	}
	program, err := largeProgram(dir)
	if err != nil {
		return err
	}
	to := filepath.Join(dir, "sent")
	commands := [][]string{ours.run("-n1", "--bcast="+to, program), ours.run("-n1", "--bcast="+to, "--compress=lz4", program), {"cp", program, to}}
	if slurmErr == nil {
		commands = append(commands, []string{"sbcast", "-j", slurm.job, program, to})
	}
	times := make([]series, 4)
	for i := range runs + 1 {
		for k, argv := range commands {
			began := time.Now()
			if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
				return fmt.Errorf("%q: %w: %s", argv, err, out)
			}
			if i > 0 { // the first of each warms the caches
				times[k] = append(times[k], uint64(time.Since(began)))
			}
			if err := os.Remove(to); err != nil {
				return err
			}
		}
	}
	for k, what := range []string{"run --bcast of 117 MB", "run --bcast of 117 MB, lz4"} {
		row(w, what, 1, times[k], "cp", times[2], nil)
		row(w, what, 1, times[k], "sbcast", times[3], slurmErr)
	}
	return os.Remove(program)
}

// largeProgram is one that does nothing, and has much behind it: half of it noise.
func largeProgram(dir string) (string, error) {
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "large")
	at := len(b)
	b = append(b, make([]byte, bcastSize-at)...)
	rng := rand.NewChaCha8([32]byte{})
	for ; at+2048 <= len(b); at += 4096 {
		rng.Read(b[at : at+2048])
	}
	return path, os.WriteFile(path, b, 0o755)
}
