// Package spawn is what the MPI programs of a step have of srun, which serves PMI-2 to the step
// daemons: other steps (MPI_Comm_spawn), and names that srun keeps for all steps that it has
// started, directly or by such a step (MPI_Publish_name).
//
// srun is asked on its own port. It starts another srun, whose step daemons find the names of
// the spawning step's in their environment (Origin). What becomes of the new step they report
// to the step daemon that has asked for it, through its slurmd: srun itself reports that the
// tasks run, and nothing else. Each step daemon has a socket for such reports (Inbox).
//
// The package knows neither slurmctld nor the tasks. Begin with Services.Spawn, and with
// Reporter on the other side.
package spawn
