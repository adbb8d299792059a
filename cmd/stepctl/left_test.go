package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// What has left is refused by its name, with where its work is done now.
func TestLeft(t *testing.T) {
	const now = " is not supported any more: use Slurm: docs/slurm.md"
	for line, want := range map[string]string{
		"batch --array=0-3 x":                   "--array" + now,
		"batch -a 0-3 x":                        "--array" + now,
		"batch -a0-3 x":                         "--array" + now,
		"batch -d afterok:3 x":                  "--dependency" + now,
		"run --dependency=singleton true":       "--dependency" + now,
		"run --begin now+1 true":                "--begin" + now,
		"alloc -b now+1":                        "--begin" + now,
		"alloc -H":                              "--hold" + now,
		"batch --hold x":                        "--hold" + now,
		"batch --kill-on-invalid-dep=yes x":     "--kill-on-invalid-dep" + now,
		"run --bcast true":                      "--bcast" + now,
		"run --bcast=/tmp/x true":               "--bcast" + now,
		"run --send-libs --bcast true":          "--send-libs" + now,
		"run --compress=lz4 true":               "--compress" + now,
		"hold 3":                                "stepctl hold" + now,
		"release 3":                             "stepctl release" + now,
		"requeue 3":                             "stepctl requeue" + now,
		"run true --array=3":                    "", // the command's
		"batch --requeue --no-requeue x --hold": "",
	} {
		err := parsed(t, line)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", line, err)
		case want != "" && (err == nil || err.Error() != want):
			t.Errorf("%q: got %v, want %q", line, err, want)
		}
	}
	c := batchCommand(&dialer{})
	_, err := scriptOptions(c, &plugins{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -n 1\n#SBATCH --array=0-3\n"))
	if err == nil || err.Error() != "job.sh:3: #SBATCH: --array"+now {
		t.Errorf("in a script: %v", err)
	}
	if _, err = scriptOptions(c, &plugins{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --no-requeue\n")); err != nil {
		t.Errorf("--no-requeue in a script: %v", err)
	}
	_, err = scriptOptions(c, &plugins{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --bcast\n"))
	if err == nil || err.Error() != "job.sh:2: #SBATCH: --bcast"+now {
		t.Errorf("in a script: %v", err)
	}
	t.Setenv("SLURM_COMPRESS", "lz4")
	if err := refuseLeft("SLURM_"); err == nil || err.Error() != `SLURM_COMPRESS="lz4" (--compress)`+now {
		t.Errorf("in a variable: %v", err)
	}
	t.Setenv("SLURM_COMPRESS", "")
	t.Setenv("SBATCH_ARRAY_INX", "1-3")
	if err := refuseLeft("SBATCH_"); err == nil || err.Error() != `SBATCH_ARRAY_INX="1-3" (--array)`+now {
		t.Errorf("in a variable: %v", err)
	}
	if err := refuseLeft("SLURM_"); err != nil {
		t.Errorf("in another verb's variable: %v", err)
	}
}

// The options that have left are no verb's any more, and not shown.
func TestLeftAreHidden(t *testing.T) {
	for _, c := range []*cobra.Command{runCommand(&dialer{}), allocCommand(&dialer{}), batchCommand(&dialer{})} {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if _, left := f.Value.(leftFlag); left && !f.Hidden {
				t.Errorf("%s shows --%s", c.Name(), f.Name)
			}
		})
		if page := pageOf(c).Roff(); strings.Contains(page, "dependency") {
			t.Errorf("the page of %s has --dependency", c.Name())
		}
	}
}
