package wire

import (
	"encoding/binary"
	"fmt"
)

// Type is the number of a message.
type Type uint16

// The messages of a step daemon.
const (
	TypeUpdateNode          Type = 3002
	TypeCancelStep          Type = 5005
	TypeStepComplete        Type = 5016
	TypeCompleteBatchScript Type = 5018
	TypeForwardData         Type = 5029
	TypeLaunchResponse      Type = 6002
	TypeTaskExit            Type = 6003
	TypeNetForward          Type = 7010
	TypeReturnCode          Type = 8001
)

var typeNames = map[Type]string{
	TypeUpdateNode: "REQUEST_UPDATE_NODE", TypeCancelStep: "REQUEST_CANCEL_JOB_STEP", TypeStepComplete: "REQUEST_STEP_COMPLETE",
	TypeCompleteBatchScript: "REQUEST_COMPLETE_BATCH_SCRIPT", TypeForwardData: "REQUEST_FORWARD_DATA",
	TypeLaunchResponse: "RESPONSE_LAUNCH_TASKS", TypeTaskExit: "MESSAGE_TASK_EXIT",
	TypeNetForward: "SRUN_NET_FORWARD", TypeReturnCode: "RESPONSE_SLURM_RC",
}

// String is the message's name in Slurm's logs.
func (t Type) String() string {
	if name := typeNames[t]; name != "" {
		return name
	}
	return fmt.Sprintf("message %d", uint16(t))
}

// writer packs a record.
type writer struct {
	v Release
	b []byte
}

func (w *writer) u8(v uint8)   { w.b = append(w.b, v) }
func (w *writer) u16(v uint16) { w.b = binary.BigEndian.AppendUint16(w.b, v) }
func (w *writer) u32(v uint32) { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

// str packs a string with its NUL; "" is NULL.
func (w *writer) str(s string) {
	if s == "" {
		w.u32(0)
		return
	}
	w.u32(uint32(len(s) + 1))
	w.b = append(append(w.b, s...), 0)
}

func (w *writer) u32s(v []uint32) {
	w.u32(uint32(len(v)))
	for _, x := range v {
		w.u32(x)
	}
}

func (w *writer) stepID(id StepID) {
	if w.v >= V2411 {
		w.u64(id.SLUID)
	}
	w.u32(id.Job)
	w.u32(id.Step)
	w.u32(id.HetComp)
}

// Message is a body that is sent.
type Message interface {
	// Type is the message's number.
	Type() Type
	pack(w *writer)
}

// Pack is the body of a message.
func Pack(v Release, m Message) []byte {
	w := &writer{v: v}
	m.pack(w)
	return w.b
}

// LaunchResponse says that the tasks of a node run, or why they do not: to srun.
type LaunchResponse struct {
	Step        StepID
	RC          uint32 // 0, or one of Slurm's errors
	Node        string
	PIDs, Ranks []uint32 // of the node's tasks
}

// Type implements Message.
func (*LaunchResponse) Type() Type { return TypeLaunchResponse }

func (m *LaunchResponse) pack(w *writer) {
	w.stepID(m.Step)
	w.u32(m.RC)
	w.str(m.Node)
	w.u32(uint32(len(m.PIDs)))
	w.u32s(m.PIDs)
	w.u32s(m.Ranks)
}

// TaskExit says that tasks have ended with a status: to srun.
type TaskExit struct {
	Step   StepID
	Status uint32 // of wait(2)
	Ranks  []uint32
}

// Type implements Message.
func (*TaskExit) Type() Type { return TypeTaskExit }

func (m *TaskExit) pack(w *writer) {
	w.u32(m.Status)
	w.u32(uint32(len(m.Ranks)))
	w.u32s(m.Ranks)
	w.stepID(m.Step)
}

// NetForward asks srun or salloc to connect to Target, on the host where it runs, and to pass on
// what follows on the connection of this message: at a TCP port, or where Port is 0 by the unix
// socket of that path.
type NetForward struct {
	Step   StepID
	Port   uint16
	Target string
}

// Type implements Message.
func (*NetForward) Type() Type { return TypeNetForward }

func (m *NetForward) pack(w *writer) {
	if w.v >= V2511 {
		w.stepID(m.Step)
	} else {
		w.u32(m.Step.Job)
	}
	w.u32(0) // no flag exists
	w.u16(m.Port)
	w.str(m.Target)
}

// StepComplete says that a step has ended on the nodes First to Last of it: to slurmctld.
type StepComplete struct {
	Step        StepID
	First, Last uint32
	RC          uint32 // of wait(2)
	Usage       *Usage
}

// Type implements Message.
func (*StepComplete) Type() Type { return TypeStepComplete }

func (m *StepComplete) pack(w *writer) {
	w.stepID(m.Step)
	w.u32(m.First)
	w.u32(m.Last)
	w.u32(m.RC)
	m.Usage.pack(w)
	if w.v >= V2405 {
		w.u8(0) // not for a step manager
	}
}

// CompleteBatchScript says that a batch job's script has ended: to slurmctld.
type CompleteBatchScript struct {
	Step  StepID
	RC    uint32 // of wait(2)
	Fault uint32 // one of Slurm's errors drains the node; 0 is none
	UID   uint32
	Node  string
	Usage *Usage
}

// Type implements Message.
func (*CompleteBatchScript) Type() Type { return TypeCompleteBatchScript }

func (m *CompleteBatchScript) pack(w *writer) {
	m.Usage.pack(w)
	if w.v < V2511 {
		w.u32(m.Step.Job)
	}
	w.u32(m.RC)
	w.u32(m.Fault)
	if w.v >= V2511 {
		w.stepID(m.Step)
	}
	w.u32(m.UID)
	w.str(m.Node)
}

// UpdateNode takes a node away from the scheduler: to slurmctld.
type UpdateNode struct {
	Node   string
	Reason string
}

// Type implements Message.
func (*UpdateNode) Type() Type { return TypeUpdateNode }

// nodeDrain is the state of a node that gets no new jobs.
const nodeDrain = 1 << 9

func (m *UpdateNode) pack(w *writer) {
	if w.v >= V2411 {
		w.str("") // cert_token
	}
	w.str("") // comment
	w.u32(0)  // cpu_bind: as it is
	for range 4 {
		w.str("") // extra, features, features_act, gres
	}
	if w.v >= V2311 {
		w.str("") // instance_id
		w.str("") // instance_type
	}
	w.str("") // node_addr
	w.str("") // node_hostname
	w.str(m.Node)
	w.u32(nodeDrain)
	if w.v >= V2605 {
		w.str("") // power_action_name
	}
	w.str(m.Reason)
	if w.v >= V2302 {
		w.u32(NoVal) // resume_after: never
	} else {
		w.u32(0) // reason_uid: root
	}
	if w.v >= V2505 {
		w.str("") // topology_str
	}
	w.u32(NoVal) // weight
}

// ForwardData has a slurmd pass bytes on to a unix socket of its node: it connects as the sender
// of the message, and writes the sender's uid and the length before them.
type ForwardData struct {
	// Address is the socket's path. slurmd replaces %n and %h in it, as in SlurmdSpoolDir.
	Address string
	Data    []byte
}

// Type implements Message.
func (*ForwardData) Type() Type { return TypeForwardData }

func (m *ForwardData) pack(w *writer) {
	w.str(m.Address)
	w.u32(uint32(len(m.Data)))
	w.u32(uint32(len(m.Data)))
	w.b = append(w.b, m.Data...)
}

// CancelStep has the tasks of a step on all of its nodes get a signal: to slurmctld.
type CancelStep struct {
	Step   StepID
	Signal uint16
}

// Type implements Message.
func (*CancelStep) Type() Type { return TypeCancelStep }

func (m *CancelStep) pack(w *writer) {
	w.stepID(m.Step)
	w.str("") // the step's name as a text
	w.str("") // of a federation
	w.u16(m.Signal)
	w.u16(0) // flags
}
