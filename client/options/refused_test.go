package options

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"stepd/client/plugins"
)

// What is not done is refused in a script and in a variable, too.
func TestLeftElsewhere(t *testing.T) {
	const now = " is not supported: use Slurm: docs/slurm.md"
	c := batchVerb()
	_, err := FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH -n 1\n#SBATCH --array=0-3\n"))
	if err == nil || err.Error() != "job.sh:3: #SBATCH: --array"+now {
		t.Errorf("in a script: %v", err)
	}
	if _, err = FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --no-requeue\n")); err != nil {
		t.Errorf("--no-requeue in a script: %v", err)
	}
	_, err = FromScript(c, &plugins.Host{}, "job.sh", []byte("#!/bin/sh\n#SBATCH --bcast\n"))
	if err == nil || err.Error() != "job.sh:2: #SBATCH: --bcast"+now {
		t.Errorf("in a script: %v", err)
	}
	t.Setenv("SLURM_COMPRESS", "lz4")
	if err := refuseVariables("SLURM_"); err == nil || err.Error() != `SLURM_COMPRESS="lz4" (--compress)`+now {
		t.Errorf("in a variable: %v", err)
	}
	t.Setenv("SLURM_COMPRESS", "")
	t.Setenv("SBATCH_ARRAY_INX", "1-3")
	if err := refuseVariables("SBATCH_"); err == nil || err.Error() != `SBATCH_ARRAY_INX="1-3" (--array)`+now {
		t.Errorf("in a variable: %v", err)
	}
	if err := refuseVariables("SLURM_"); err != nil {
		t.Errorf("in another verb's variable: %v", err)
	}
}

// Refused options are on no page.
func TestLeftAreHidden(t *testing.T) {
	alloc := &cobra.Command{Use: "alloc"}
	new(Run).BindJob(alloc)
	for _, c := range []*cobra.Command{runVerb(), alloc, batchVerb()} {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if _, left := f.Value.(*refusedFlag); left && !f.Hidden {
				t.Errorf("%s shows --%s", c.Name(), f.Name)
			}
		})
	}
}
