package pmi2

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"stepd/step"
	"stepd/step/launch"
)

func mpichProgram(t *testing.T) string {
	needs(t, "mpicc.mpich", "mpich and libmpich-dev")
	return compile(t, "mpicc.mpich", "testdata/mpi/mpitest.c")
}

func libpmi2Program(t *testing.T) string {
	needs(t, "gcc", "gcc")
	needs(t, "/usr/include/slurm/pmi2.h", "libpmi2-0-dev")
	return compile(t, "gcc", "testdata/libpmi2/client.c", "-lpmi2")
}

// same runs one command line on all ranks.
func same(argv ...string) func(int) []string { return func(int) []string { return argv } }

func TestMPICHAllreduce(t *testing.T) {
	program := mpichProgram(t)
	for _, n := range []int{1, 2, 8, 32} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			runRanks(t, n, same(program)).wantOK(t)
		})
	}
}

func TestMPICHNames(t *testing.T) {
	runRanks(t, 2, same(mpichProgram(t), "names")).wantOK(t)
}

func TestMPICHAbort(t *testing.T) {
	runRanks(t, 3, same(mpichProgram(t), "abort")).wantAbort(t, 2, 42, "rank 2 called abort")
}

func TestMPICHExitWithoutFinalize(t *testing.T) {
	runRanks(t, 2, same(mpichProgram(t), "exit")).wantAbort(t, 1, 7,
		"rank 1 ended (Exited with exit code 7)", "had not finalized")
}

// A surrounding mpiexec's variables must not reach the ranks.
func TestMPICHWithinMPIEXEC(t *testing.T) {
	program := mpichProgram(t)
	for _, name := range []string{"PMI_ID", "PMI_RANK", "PMI_SPAWNED", "PMI_SIZE"} {
		t.Setenv(name, "1")
	}
	runRanks(t, 2, same(program)).wantOK(t)
}

func TestMPICHRankThatNeverInits(t *testing.T) {
	program := mpichProgram(t)
	runRanks(t, 3, func(rank int) []string {
		if rank == 1 {
			return []string{"/bin/true"}
		}
		return []string{program}
	}).wantAbort(t, 1, 1, "of 3 ranks wait", "rank 1 will never enter", "Exited with exit code 0")
}

func TestLibPMI2EveryCall(t *testing.T) {
	program := libpmi2Program(t)
	for _, n := range []int{1, 2, 8, 32} {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) {
			r := runRanks(t, n, same(program, "all"))
			r.log = without(without(r.log, "is not supported by mpi/pmi2"), "spawn: no such file")
			r.wantOK(t)
			want := launch.SpawnRequest{
				MPI: "pmi2", Preput: []step.KeyValue{{Key: "port", Value: []byte("tag#0;$x")}},
				Apps: []launch.SpawnApp{
					{Argv: []string{"/bin/true", "a;b", "c=d e"}, NTasks: 2, Info: []step.KeyValue{{Key: "wdir", Value: []byte("/tmp")}}},
					{Argv: []string{"/bin/false", "x"}, NTasks: 1},
				},
			}
			i := slices.IndexFunc(r.job.spawned, func(got launch.SpawnRequest) bool {
				got.Rank = 0
				return reflect.DeepEqual(got, want)
			})
			if i < 0 || len(r.job.spawned) != 2*n {
				t.Errorf("%d spawns, none as it was asked: %+v", len(r.job.spawned), r.job.spawned)
			}
		})
	}
}

func without(lines []string, text string) []string {
	var kept []string
	for _, line := range lines {
		if !strings.Contains(line, text) {
			kept = append(kept, line)
		}
	}
	return kept
}

func TestLibPMI2Ends(t *testing.T) {
	program := libpmi2Program(t)
	for _, c := range []struct {
		mode  string
		code  int
		words []string
	}{
		{"abort", 1, []string{`rank 2 called abort: "boom; with=signs"`}},
		{"exit", 3, []string{"rank 2 ended (Exited with exit code 3)", "1 fences passed", "had not finalized"}},
		{"crash", 128 + 6, []string{"rank 2 ended (Aborted", "had not finalized"}},
		{"leave", 1, []string{"fence cannot complete", "rank 2 will never enter it", "rank 2"}},
	} {
		t.Run(c.mode, func(t *testing.T) {
			runRanks(t, 3, same(program, c.mode)).wantAbort(t, 2, c.code, c.words...)
		})
	}
}
