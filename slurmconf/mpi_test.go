package slurmconf

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestMPIConf: Slurm's keys of mpi.conf, ours in stepd.conf, and what is said
// about keys that contradict each other.
func TestMPIConf(t *testing.T) {
	for _, c := range []struct {
		name, mpi, stepd string
		want             []string
	}{
		{name: "all of Slurm's", mpi: "PMIxTimeout=300\nPMIxEnv=\"A=1;;B=\"\nPMIxDebug=0\n"},
		{
			name: "no effect", mpi: "PMIxDirectConnUCX=true\n",
			want: []string{`warning: mpi.conf:1: PMIxDirectConnUCX="true": the key tunes slurmstepd's own PMIx plugin and has no effect here`},
		},
		{
			name: "mistakes", mpi: "PMIxTimeout=0\nPMIxEnv=A\nPMIxEnv=LD_PRELOAD=/x\nPMIxTimout=3\n",
			want: []string{
				`error: mpi.conf:1: cannot use PMIxTimeout="0": out of range; write a number from 1 to 65533`,
				`error: mpi.conf:2: cannot use PMIxEnv="A": "A" sets no variable; write NAME=VALUE;NAME=VALUE`,
				`warning: mpi.conf:3: PMIxEnv was set at mpi.conf:2 already: this one counts; remove one of them`,
				`error: mpi.conf:3: cannot use PMIxEnv="LD_PRELOAD=/x": LD_PRELOAD would change what the PMIx server loads; set what a PMIx library reads`,
				`error: mpi.conf:4: cannot use key "PMIxTimout": there is none of that name; is "pmixtimeout" meant?`,
			},
		},
		{
			name: "ours in Slurm's file", mpi: "PMI2KeyBytes=64\n",
			want: []string{`error: mpi.conf:1: PMI2KeyBytes is not a key of this file and is not read; move it to stepd.conf beside slurm.conf: a real slurmd stops at it here`},
		},
		{
			name: "limits", stepd: "PMI2KeysPerRank=1\nPMI2FrameBytes=1000000\n",
			want: []string{
				`error: stepd.conf:1: cannot use PMI2KeysPerRank="1": out of range; write a number from 16 to 1048576`,
				`error: stepd.conf:2: cannot use PMI2FrameBytes="1000000": out of range; write a number from 1024 to 999999`,
			},
		},
		{
			name: "a frame that holds no pair", stepd: "KeepSteps=3\nPMI2ValueBytes=40000\n",
			want: []string{`error: stepd.conf:2: cannot use PMI2FrameBytes of 65536: a key and a value of the most that is allowed need 80768; raise PMI2FrameBytes, or lower the others`},
		},
		{
			name: "a queue that holds no answer", stepd: "PMI2QueueBytes=4096\nPMI2KeyBytes=2000\n",
			want: []string{`error: stepd.conf:2: cannot use PMI2QueueBytes of 4096: an answer of the most that is allowed needs 6304; raise PMI2QueueBytes, or lower the others`},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, probs, dir := load(t, map[string]string{"slurm.conf": "NodeName=vm\n", "mpi.conf": c.mpi, "stepd.conf": c.stepd})
			var want []string
			want = append(want, c.want...)
			if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
