package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Type is the number of a message.
type Type uint16

// The messages of a step daemon.
const (
	TypeUpdateNode          Type = 3002
	TypeKillStep            Type = 5005
	TypeStepComplete        Type = 5016
	TypeCompleteBatchScript Type = 5018
	TypeForwardData         Type = 5029
	TypeLaunchResponse      Type = 6002
	TypeTaskExit            Type = 6003
	TypeReturnCode          Type = 8001
)

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

// Usage is what a step has used. nil is that nothing was measured.
type Usage struct {
	UserSeconds, SystemSeconds uint64
	UserMicro, SystemMicro     uint32
	CPUFreq                    uint32 // kHz
	Energy                     uint64
	// TRES are the numbers of the resources that In and Out have figures of.
	TRES    []uint32
	In, Out [7][]uint64
}

func (u *Usage) pack(w *writer) {
	if u == nil {
		w.u8(0)
		return
	}
	w.u8(1)
	w.u64(u.UserSeconds)
	w.u32(u.UserMicro)
	w.u64(u.SystemSeconds)
	w.u32(u.SystemMicro)
	w.u32(u.CPUFreq)
	w.u64(u.Energy)
	w.u32s(u.TRES)
	w.u32(NoVal) // no list of what they are
	for _, side := range [2][7][]uint64{u.In, u.Out} {
		for _, figures := range side {
			w.u32(uint32(len(figures)))
			for _, f := range figures {
				w.u64(f)
			}
		}
	}
}

// Header is what stands before a message.
type Header struct {
	Release Release
	Flags   uint16
	Type    Type
}

// unsigned is the flag of an answer that has no token: since 24.11 slurmctld and srun answer
// so to those whose message they have trusted.
const unsigned = 0x40

// Unsigned reports whether the message has no token.
func (h Header) Unsigned() bool { return h.Release >= V2411 && h.Flags&unsigned != 0 }

// authMunge is the number of the plugin auth/munge.
const authMunge = 101

// Frame is a message as it is sent: header, token and body, with their length before them.
func Frame(v Release, t Type, token string, body []byte) []byte {
	w := &writer{v: v}
	w.u32(0) // the length, below
	w.u16(uint16(v))
	w.u16(0)
	w.u16(uint16(t))
	w.u32(uint32(len(body)))
	w.u16(0) // nothing is forwarded
	w.u16(0) // nothing is returned
	w.u16(0) // no address of an origin
	w.u32(authMunge)
	w.str(token)
	w.b = append(w.b, body...)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

// ParseFrame takes a message without its length apart.
func ParseFrame(b []byte) (h Header, token string, body []byte, err error) {
	r := newReader(0, "message", b)
	h.Release, h.Flags, h.Type = Release(r.u16("version")), r.u16("flags"), Type(r.u16("type"))
	size := r.u32("body_length")
	if forwards := r.u16("forward"); forwards != 0 {
		r.fail("forward", errors.New("it is to be forwarded"))
	}
	if returned := r.u16("returned"); returned != 0 {
		r.fail("returned", errors.New("it has others' answers"))
	}
	r.addr("origin")
	if h.Unsigned() {
		return h, "", r.take("body", r.fits("body_length", uint64(size), 1)), r.end()
	}
	if plugin := r.u32("auth"); plugin != authMunge && r.err == nil {
		r.fail("auth", fmt.Errorf("it is signed by plugin %d, and not by munge", plugin))
	}
	token = r.str("token")
	body = r.take("body", r.fits("body_length", uint64(size), 1))
	return h, token, body, r.end()
}

// Hash is what a token must have for a message of the type: that it is no other's.
func Hash(t Type) []byte { return binary.BigEndian.AppendUint16([]byte{1}, uint16(t)) }

// ReturnCode reads the body of TypeReturnCode.
func ReturnCode(body []byte) (uint32, error) {
	r := newReader(0, "return_code", body)
	rc := r.u32("rc")
	return rc, r.end()
}
