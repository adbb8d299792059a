package step

import "os"

// MPIJob is what an MPI plugin may know and do (seeds: MPI plugin API). Abort
// and Log may be called from any goroutine, until the plugin was closed.
type MPIJob struct {
	Spec *Spec
	// Abort ends the step because a rank asked for it; code is the exit code.
	Abort func(rank, code int, text string)
	// Log writes a line for the administrator.
	Log func(text string)
}

// MPITasks is what prefork hands to the tasks. All of it may be nil.
type MPITasks struct {
	// Env is set for every task, TaskEnv[rank] for one ("NAME=VALUE").
	Env     []string
	TaskEnv [][]string
	// TaskFDs[rank] are descriptors that survive exec.
	TaskFDs [][]TaskFD
}

// TaskFD is one descriptor for one task. Var is the variable that tells the
// task its number. Who receives it closes File.
type TaskFD struct {
	File *os.File
	Var  string
}
