package step

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"
)

// MPIJob is what an MPI plugin may know and do (seeds: MPI plugin API). The
// functions may be called from any goroutine, until the plugin was closed.
type MPIJob struct {
	Spec *Spec
	// Abort ends the step because a rank asked for it; code is the exit code. Rank -1
	// is none: what serves the ranks is at fault.
	Abort func(rank, code int, text string)
	// Log writes a line for the administrator.
	Log func(text string)
	// Progress notes how far a rank has come, for explain; nil: not wanted.
	Progress func(rank int, p MPIProgress)
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

// TaskFD is one descriptor for one task. Var is the variable that has the
// task its number. Who receives it closes File.
type TaskFD struct {
	File *os.File
	Var  string
}

// MPITask is one task of this node.
type MPITask struct {
	Rank  int
	State TaskState
	// PID is its process, 0 before it was forked. Program is what the process
	// runs, "" where it is not known, as after its end.
	PID     int
	Program string
	// Status is nil before the end.
	Status *ExitStatus
}

// MPIProgress is how far a rank has come in its MPI start-up.
type MPIProgress struct {
	// Phase is "started", "connected", "initialized" or "finalized".
	Phase string `json:"phase"`
	// Protocol is what it speaks: "PMI-1", "PMI-2" or "PMIx 4.2".
	Protocol string `json:"protocol,omitempty"`
	// Fences counts the fences that it has completed.
	Fences int `json:"fences"`
	// Waiting says what it waits for now, "" nothing: "fence 3", "key \"a\" of node".
	// WaitsFor are the ranks that it waits for, as a list ("3,7"), where that is known.
	Waiting  string `json:"waiting,omitempty"`
	WaitsFor string `json:"waits_for,omitempty"`
}

// Peers are the stepds of one step, which find each other by the step's Layout.
// Methods may be called from several goroutines. They fail when a node is lost or
// the step ends.
type Peers interface {
	// Allgather gives each of the nodes' stepds what all of them have given: the
	// same count of entries, in the order of nodes (ascending node ids; nil are all).
	// Calls of one name with the same nodes meet in their order. The error is a
	// *MissingError when ctx ends first.
	Allgather(ctx context.Context, name string, nodes []int, data []byte) ([][]byte, error)
	// Call asks one node's handler of that name for an answer.
	Call(ctx context.Context, node int, name string, data []byte) ([]byte, error)
	// Handle sets who answers Call for a name. It may be called by several
	// goroutines at once, and must not wait for a call of its own to the same node.
	Handle(name string, answer func(ctx context.Context, from int, data []byte) ([]byte, error))
}

// MissingError says which nodes have not come to a meeting of all.
type MissingError struct {
	Name  string
	Nodes []int
	Cause error
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("node %s did not come to %q: %v", FormatCPUList(e.Nodes), e.Name, e.Cause)
}

func (e *MissingError) Unwrap() error { return e.Cause }

// MPIServices are what noded keeps for the steps of a job.
type MPIServices interface {
	// Spawn starts another step of the job and returns when its tasks are about to
	// be started.
	Spawn(ctx context.Context, r SpawnRequest) (ID, error)
	// Publish, Lookup and Unpublish keep the job's names (MPI_Publish_name). Lookup
	// of a name that is not published returns found=false.
	Publish(ctx context.Context, name, port string) error
	Lookup(ctx context.Context, name string) (port string, found bool, err error)
	Unpublish(ctx context.Context, name string) error
	// Await is Lookup that waits for the name as long as ctx lasts; found=false says
	// that it has not come.
	Await(ctx context.Context, name string) (port string, found bool, err error)
	// Meet gives each of the parties what all of them came with, by party. Each is
	// one step of the job; all name the same parties in the same order.
	Meet(ctx context.Context, name string, parties []string, me string, data []byte) (map[string][]byte, error)
}

// SpawnRequest is what MPI_Comm_spawn and MPI_Comm_spawn_multiple ask for.
type SpawnRequest struct {
	// Rank is whose call it is: the new tasks write to its standard output and error.
	Rank int `json:"rank"`
	// Apps are the commands, whose ranks follow each other.
	Apps []SpawnApp `json:"apps"`
	// Preput are keys that the new ranks find in their key value space, in pairs.
	Preput []KeyValue `json:"preput,omitempty"`
	// MPI is the new step's type, which is the old one's.
	MPI string `json:"mpi"`
}

// SpawnApp is one command of a SpawnRequest.
type SpawnApp struct {
	Argv   []string `json:"argv"`
	NTasks int      `json:"ntasks"`
	Env    []string `json:"env,omitempty"` // set over the environment of the spawning step
	Cwd    string   `json:"cwd,omitempty"` // "" is the spawning step's
	// Info are the hints of the program, the ones that have a meaning (wdir, path,
	// host, soft).
	Info []KeyValue `json:"info,omitempty"`
}

// KeyValue is one pair; either may be any bytes.
type KeyValue struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}

// SpawnError says that a step was made whose tasks could not all be started; it
// is being ended. The error of Spawn may be one.
type SpawnError struct {
	ID ID
	// Failed are the ranks that were not started, with the cause of each.
	Failed map[int]string
	Cause  string
}

func (e *SpawnError) Error() string {
	ranks := slices.Sorted(maps.Keys(e.Failed))
	return fmt.Sprintf("cannot start the tasks of step %s (rank %s): %s", e.ID, FormatCPUList(ranks), e.Cause)
}
