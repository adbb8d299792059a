// Package slurm holds tests that run the built slurmstepd below the real slurmd: what srun
// and sbatch print and do is compared with the same commands under Slurm's own step
// daemon.
//
// testdata/checks.txt has the commands, testdata/differences.tsv the differences that are
// intended, each with its reason. twin_root_test.go runs them. Package cluster is a private
// Slurm, for these tests and others.
package slurm
