// Command slurmstepd is the step daemon that slurmd starts: see package slurmstepd.
package main

import "stepd/slurm/slurmstepd"

func main() { slurmstepd.Main() }
