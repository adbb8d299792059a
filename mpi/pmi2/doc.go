// Package pmi2 serves the two older process management interfaces to the
// ranks of one node: PMI-1 (the "simple" wire protocol, which MPICH speaks by
// default) and PMI-2 (Slurm's libpmi2, MPICH built for it). Which of the two a
// rank speaks is decided by its first line.
//
// It is not a launcher and it is not PMIx: stepd forks the ranks, and hands
// each one end of a socketpair, whose number is in PMI_FD. There is no path
// and no port, so a private /tmp or network namespace does not matter, and no
// rank can claim to be another.
//
// Begin with Plugin. The files: wire.go turns bytes into messages and back; conn.go
// moves bytes, and answers.go answers messages; state.go and fence.go hold what the ranks
// share.
//
// Sources: the message lists that MPICH ships for PMI 1.1 and 2.0, the
// constants of <slurm/pmi2.h>, and conversations recorded between MPICH 4.0.2
// and mpiexec.hydra.
package pmi2
