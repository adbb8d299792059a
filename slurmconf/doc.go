// Package slurmconf reads a site's configuration in Slurm's own syntax:
// slurm.conf with its includes, and beside it stepd.conf, cgroup.conf,
// job_container.conf and mpi.conf. Begin with Load.
//
// It reports every mistake with its file and line, and every key that does not
// concern a node daemon; what to do about them is the caller's decision. It
// reads files and nothing else: no environment, no name service, no hardware.
// plugstack.conf has a grammar of its own and is package spank's.
//
// The syntax is that of Slurm 22.05.8 as measured with its scontrol. Where a
// real slurmd would refuse a line, so is it a mistake here.
package slurmconf
