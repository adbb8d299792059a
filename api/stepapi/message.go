package stepapi

import (
	"encoding/json"
	"errors"

	"stepd/step"
)

// Version of the protocol. A peer with another major number is refused by name.
const Version = 1

// Descriptors that noded hands to stepd when it starts it.
const (
	FDSpec      = 3 // sealed memfd: step.Spec, JSON
	FDControl   = 4 // SOCK_SEQPACKET pair, noded's end is its peer
	FDListen    = 5 // listening socket RUN/steps/J.S.sock, SOCK_SEQPACKET
	FDEvents    = 6 // the step's event log, O_APPEND
	FDContainer = 7 // the job's mount namespace; /dev/null where Spec.ContainerNS is false

	// 8 is /dev/null: earlier releases have a socket there, and an upgraded stepd may be
	// started by a noded of one.
	FDPIDNamespace  = 9  // the job's pid namespace, as Spec.PIDNamespace says
	FDUserNamespace = 10 // its user namespace, as Spec.UserNamespace says
)

// Type names a record.
type Type string

const (
	// TypeHello opens a connection, in both directions. From stepd it carries Record.
	TypeHello Type = "hello"

	// From a client (the step's owner or root):

	// TypeAttach hands stepd descriptors for the tasks' streams: Streams[i]
	// belongs to the i-th descriptor of the packet. At most 200 a packet.
	TypeAttach Type = "attach"
	// TypeAttachDone says that all streams were handed over: stepd may fork.
	TypeAttachDone Type = "attach_done"
	// TypeSignal asks for Signal to be sent to whom Scope names (step.ScopeTasks
	// and its like). Answered by TypeReply.
	TypeSignal Type = "signal"
	// TypeCancel ends the step: SIGTERM, KillWait, SIGKILL. Reason is a note that stands in
	// quotes behind the peer's uid. From a daemon, as root, Text is the whole reason.
	// Answered by TypeReply.
	TypeCancel Type = "cancel"
	// TypeSuspend makes the tasks stand still, TypeResume undoes it. From noded, as root.
	// Answered by TypeReply when it is done: the former takes two seconds and more.
	TypeSuspend Type = "suspend"
	TypeResume  Type = "resume"
	// TypeStat asks what the tasks use just now. Answered by TypeReply with Record.
	TypeStat Type = "stat"
	// TypeWatch asks to see the tasks' output, and to type into their terminal: Watch.
	// Answered by TypeReply with Watched and one descriptor, a SOCK_SEQPACKET
	// connection of the frames of package stepio/replay.
	TypeWatch Type = "watch"
	// TypeAck is noded's answer to TypeResult: the result is stored.
	TypeAck Type = "ack"
	// TypeLauncherLost is noded's word that the process which has asked for the step has
	// ended: one that was never connected cannot be missed by stepd.
	TypeLauncherLost Type = "launcher_lost"
	// TypeAnswer is noded's answer to TypeAsk: Answer, or Error.
	TypeAnswer Type = "answer"

	// From stepd:

	// TypeReply answers Stat, Signal, Cancel, Suspend, Resume and Watch; Error is empty on success.
	TypeReply Type = "reply"
	// TypeState reports a change of the step's state (STARTING, RUNNING, COMPLETING). To
	// noded with Record, complete with the tasks' pids once RUNNING.
	TypeState Type = "state"
	// TypeMessage is a line for the user's stderr, without a newline: the
	// node's words ("stepd-vm: error: ..."), not the tasks' bytes.
	TypeMessage Type = "message"
	// TypeTaskExit tells ends of tasks: Ranks share Status.
	TypeTaskExit Type = "task_exit"
	// TypeAsk asks noded for what the steps of a job share: Ask. Answered by TypeAnswer
	// with the same Seq, in any order.
	TypeAsk Type = "ask"
	// TypeResult is the last record: Record is final. noded answers it by Ack.
	TypeResult Type = "result"
)

// Role says on whose behalf a connection speaks.
type Role string

const (
	RoleNoded  Role = "noded"  // root only: gets State and Result, owes Ack
	RoleLaunch Role = "launch" // stepctl run: attaches streams; its loss before the gate cancels the step
	RoleTool   Role = "tool"   // stepctl attach; noded where it passes a request on
)

// Msg is every record; which fields are set depends on Type.
type Msg struct {
	Type    Type             `json:"type"`
	Version int              `json:"version,omitempty"`
	Role    Role             `json:"role,omitempty"`
	Seq     uint32           `json:"seq,omitempty"` // echoed by Reply
	Streams []StreamFD       `json:"streams,omitempty"`
	Signal  int              `json:"signal,omitempty"`
	Scope   string           `json:"scope,omitempty"`
	Reason  string           `json:"reason,omitempty"`
	By      *uint32          `json:"by,omitempty"` // Suspend, Resume: the uid that noded asks for; 0 without
	Text    string           `json:"text,omitempty"`
	Error   string           `json:"error,omitempty"`
	Ended   bool             `json:"ended,omitempty"` // Error is step.ErrEnded
	State   step.State       `json:"state,omitempty"`
	Ranks   []int            `json:"ranks,omitempty"`
	Status  *step.ExitStatus `json:"status,omitempty"`
	Record  *step.Record     `json:"record,omitempty"`
	Watch   *Watch           `json:"watch,omitempty"`
	Watched *Watched         `json:"watched,omitempty"`
	Ask     *Ask             `json:"ask,omitempty"`
	Answer  *Answer          `json:"answer,omitempty"`
}

// Err is what a Reply or a Hello refuses, nil of one that refuses nothing. It is
// step.ErrEnded where the step has ended.
func (m *Msg) Err() error {
	switch {
	case m.Ended:
		return step.ErrEnded
	case m.Error != "":
		return errors.New(m.Error)
	}
	return nil
}

// What an Ask is for (launch.MPIServices).
const (
	AskSpawn     = "spawn"
	AskPublish   = "publish"
	AskLookup    = "lookup"
	AskUnpublish = "unpublish"
	AskMeet      = "meet"
)

// AsksMax is how many requests of one step noded answers at a time; it refuses
// more.
const AsksMax = 64

// Ask is one request of stepd's on behalf of its tasks.
type Ask struct {
	Do string `json:"do"`
	// Name and Port are a published name and what it stands for; they may be any bytes.
	Name []byte `json:"name,omitempty"`
	Port []byte `json:"port,omitempty"`
	// Request is the step to spawn, a step.Request, and Preput its step.Spec.Preput.
	Request json.RawMessage `json:"request,omitempty"`
	Preput  []step.KeyValue `json:"preput,omitempty"`
	// WaitMS is how long a lookup waits for the name, and a meeting for the others.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// Of a meeting: who comes with Port, and who is to come.
	Party   string   `json:"party,omitempty"`
	Parties []string `json:"parties,omitempty"`
}

// Answer is what became of an Ask.
type Answer struct {
	// Of a spawn: the new step, and the socket of its stepd.
	ID         *step.ID `json:"id,omitempty"`
	SocketDir  string   `json:"socket_dir,omitempty"`
	SocketName string   `json:"socket_name,omitempty"`
	// Of a lookup.
	Found bool   `json:"found,omitempty"`
	Port  []byte `json:"port,omitempty"`
	// Parts are what the parties of a meeting came with, in the order of Ask.Parties.
	Parts []step.KeyValue `json:"parts,omitempty"`
}

// Watch is how a client wants to see a step's output. The launcher's holds back the
// tasks when it does not read; others have a gap then.
type Watch struct {
	// ReadOnly takes no input and no window size.
	ReadOnly bool `json:"read_only,omitempty"`
	// Replay is how many bytes of what is kept come first; below 0 is all.
	Replay int64 `json:"replay"`
	// Once: what is kept, and nothing that comes after.
	Once bool `json:"once,omitempty"`
}

// Watched is what a Watch got.
type Watched struct {
	// Terminal: the bytes are a terminal's.
	Terminal bool `json:"terminal,omitempty"`
	// Stdout and Stderr say whether they pass through stepd: else nothing of them is
	// seen.
	Stdout bool `json:"stdout,omitempty"`
	Stderr bool `json:"stderr,omitempty"`
}

// StreamFD says what one attached descriptor is for.
type StreamFD struct {
	FD int `json:"fd"` // 0, 1 or 2
	// Rank is the task's rank, or -1 for every task that has no own one.
	Rank int `json:"rank"`
	// Relay says that the descriptor is a pipe (FD 1 or 2) to which stepd is to pass on
	// what the tasks write. They never have it, unless it belongs to their user and no
	// pipe can be put between.
	Relay bool `json:"relay,omitempty"`
}

// JobScript is noded's document for `stepd spank prolog|epilog`: the job_script context.
type JobScript struct {
	Schema int `json:"schema"`
	// Job has the job's own fields of a step, and the site. State is RUNNING, and for the
	// epilog how the job has ended.
	Job   step.Spec  `json:"job"`
	State step.State `json:"state"`
	// Env is the plugins' own environ. It is bytes: users' words to plugins are
	// among it.
	Env [][]byte `json:"env"`
	// JobControl is the job control environment, NAME=VALUE without a prefix,
	// with options as spank.OptionVariable names them.
	JobControl [][]byte `json:"job_control"`
}

// JobScriptResult is the answer of `stepd spank prolog|epilog` to noded.
type JobScriptResult struct {
	Schema int `json:"schema"`
	// Hooks are the hooks that the stack has in its plugins, each once; nil where it
	// could not be loaded.
	Hooks []string `json:"hooks"`
	// Failure says what went wrong with a required plugin, "" if nothing did.
	Failure string `json:"failure,omitempty"`
	// Crashes are the plugins that took their host down.
	Crashes []step.PluginCrash `json:"crashes,omitempty"`
}
