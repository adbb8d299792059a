package launch

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"

	"stepd/step"
)

// MPIJob is what an MPI plugin may know and do (seeds: MPI plugin API). The
// functions may be called from any goroutine, until the plugin was closed.
type MPIJob struct {
	Spec *step.Spec
	// HostPID is the SPANK host: what it sees of the file systems, which its plugins may have
	// changed, a task sees that joins no container. 0 is not known.
	HostPID int
	// Abort ends the step because a rank asked for it; code is the exit code. Rank -1
	// is none: the server of the ranks is at fault.
	Abort func(rank, code int, text string)
	// Log writes a line for the administrator.
	Log func(text string)
	// Progress notes how far a rank has come, for explain; nil notes nothing.
	Progress func(rank int, p step.MPIProgress)
	// Tasks returns the present state of the tasks of this node, by local id, and
	// Signal sends a signal to the running tasks with these ranks; Cancel ends the step as its
	// user's cancel does. nil where they are not available.
	Tasks  func() []MPITask
	Signal func(ranks []int, sig syscall.Signal) error
	Cancel func(reason string)
	// Peers are the step's stepds on other nodes; nil for a step of one node.
	Peers Peers
	// Job is what the steps of a job share; nil where it is not provided.
	Job MPIServices
}

// MPITasks is what prefork hands to the tasks. All of it may be nil. What is
// counted by task is counted by local id (Spec.LocalRanks).
type MPITasks struct {
	// Env is set for every task, TaskEnv[i] for one ("NAME=VALUE").
	Env     []string
	TaskEnv [][]string
	// TaskFDs[i] are descriptors that survive exec.
	TaskFDs [][]TaskFD
}

// TaskFD is one descriptor for one task. Var is the variable by which the task
// finds its number. The receiver of a TaskFD closes File.
type TaskFD struct {
	File *os.File
	Var  string
}

// MPITask is one task of this node.
type MPITask struct {
	Rank  int
	State step.TaskState
	// PID is its process, 0 before the fork. Program is the file that the process
	// runs, "" where it is not known, as after the task's end.
	PID     int
	Program string
	// Status is nil before the end.
	Status *step.ExitStatus
}

// Peers are the stepds of one step, which find each other by the step's Layout.
// Methods may be called from several goroutines. They fail when a node is lost or
// the step ends.
type Peers interface {
	// Allgather gives each stepd of the nodes the data of all of them: one entry for
	// each node, in the order of nodes (ascending node ids; nil are all nodes).
	// Calls of one name with the same nodes meet in their order. The error is a
	// *MissingError where ctx's deadline passes first.
	Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error)
	// Call asks one node's handler of that name for an answer.
	Call(ctx context.Context, node int, name string, data []byte) ([]byte, error)
	// Handle sets the function that answers Call for a name. Several goroutines may
	// call answer at once; it must not wait for a call of its own to the same node.
	Handle(name string, answer func(ctx context.Context, from int, data []byte) ([]byte, error))
}

// MissingError names the nodes that were missing in an Allgather.
type MissingError struct {
	Name  string
	Nodes []int
	Cause error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("node %s did not come to %q: %v", step.FormatCPUList(e.Nodes), e.Name, e.Cause)
}

func (e *MissingError) Unwrap() error { return e.Cause }

// MPIServices are the names and meetings that noded keeps for the steps of a job.
type MPIServices interface {
	// Spawn starts another step of the job and returns when its tasks are about to
	// be started.
	Spawn(ctx context.Context, r SpawnRequest) (step.ID, error)
	// Publish, Lookup and Unpublish keep the job's names (MPI_Publish_name). Lookup
	// of a name that is not published returns found=false.
	Publish(ctx context.Context, name, port string) error
	Lookup(ctx context.Context, name string) (port string, found bool, err error)
	Unpublish(ctx context.Context, name string) error
	// Await is a Lookup that waits for the name as long as ctx lasts; found=false says
	// that the name was not published in that time.
	Await(ctx context.Context, name string) (port string, found bool, err error)
	// Meet gives each party the data of all, by party. Each party is one step of the
	// job; all name the same parties in the same order.
	Meet(ctx context.Context, name string, parties []string, me string, data []byte) (map[string][]byte, error)
}

// SpawnAppsMax bounds the commands of one MPI_Comm_spawn_multiple.
const SpawnAppsMax = 1024

// SpawnRequest is a call of MPI_Comm_spawn or MPI_Comm_spawn_multiple.
type SpawnRequest struct {
	// Rank is the caller's: the new tasks write to its standard output and error.
	Rank int `json:"rank"`
	// Apps are the commands, whose ranks follow each other.
	Apps []SpawnApp `json:"apps"`
	// Preput are keys that the new ranks find in their key value space, in pairs.
	Preput []step.KeyValue `json:"preput,omitempty"`
	// MPI is the MPI type of the new step, the same as the spawning step's.
	MPI string `json:"mpi"`
}

// SpawnApp is one command of a SpawnRequest.
type SpawnApp struct {
	Argv   []string `json:"argv"`
	NTasks int      `json:"ntasks"`
	Env    []string `json:"env,omitempty"` // set over the environment of the spawning step
	Cwd    string   `json:"cwd,omitempty"` // "" is the spawning step's
	// Info are the program's hints that have a meaning here (wdir, path, host, soft).
	Info []step.KeyValue `json:"info,omitempty"`
}

// SpawnError says that a step was made whose tasks could not all be started; it
// is being ended. The error of Spawn may be one.
type SpawnError struct {
	ID step.ID
	// Failed are the ranks that were not started, with the cause of each.
	Failed map[int]string
	Cause  string
}

func (e *SpawnError) Error() string {
	ranks := slices.Sorted(maps.Keys(e.Failed))
	return fmt.Sprintf("cannot start the tasks of step %s (rank %s): %s", e.ID, step.FormatCPUList(ranks), e.Cause)
}
