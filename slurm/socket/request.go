package socket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"stepd/slurm/wire"
)

// code is the number of a request.
type code int32

// The requests.
const (
	reqSLUID       code = 1 // since 25.11
	reqSignal      code = 4
	reqState       code = 5
	reqAttach      code = 7
	reqHasPID      code = 8
	reqDaemonPID   code = 9
	reqSuspend     code = 10
	reqResume      code = 11
	reqTerminate   code = 12
	reqTaskInfo    code = 14
	reqPIDs        code = 15
	reqReconfigure code = 16
	reqStat        code = 17
	reqCompletion  code = 18
	reqMemLimits   code = 19
	reqUID         code = 20
	reqNodeID      code = 21
	reqAddPID      code = 22
	reqX11         code = 23
	reqPasswd      code = 24
	reqGroup       code = 25
	reqNamespace   code = 26
	reqHost        code = 27
	reqNamespaces  code = 28 // since 25.05
	reqNotify      code = 4022
)

// request is what a client asks for. Which fields count depends on the code.
type request struct {
	code   code
	pid    int32  // of reqHasPID and reqAddPID
	signal int32  // of reqSignal, as are flags
	flags  uint32 // which processes
	text   string // of reqNotify, and the reason of reqSignal; a name
	mode   int32  // of reqPasswd, reqGroup and reqHost
	id     int32  // of reqPasswd and reqGroup: a uid or gid
	attach *Attachment
	ended  NodesEnd // of reqCompletion
}

// NodesEnd is the end of a step on nodes below this one in its tree, as slurmd passes it on:
// numbers within the step, the highest status and what they have used, packed.
type NodesEnd struct {
	First, Last, RC uint32
	Usage           []byte
}

// Flags of reqSignal (slurm.h: KILL_JOB_BATCH and KILL_FULL_JOB).
const (
	flagBatch   = 0x1
	flagFullJob = 0x8
)

const (
	// textMax bounds a text that a client sends, in bytes.
	textMax = 64 << 10
	// usageMax bounds a usage, of which a resource has 116 bytes.
	usageMax = 1 << 20
	// configMax bounds what slurmd sends of its configuration, which is not kept.
	configMax = 16 << 20
)

// errUnknown is the error of a request that does not exist: where it ends is not known.
var errUnknown = errors.New("unknown request")

// readRequest reads one request of a client of the release v. The error is io.EOF where the
// client is done.
func readRequest(v wire.Release, in io.Reader) (request, error) {
	r := fields{in: in}
	var word [4]byte
	if _, err := io.ReadFull(in, word[:]); err != nil {
		return request{}, err
	}
	q := request{code: code(binary.NativeEndian.Uint32(word[:]))}
	switch q.code {
	case reqState, reqDaemonPID, reqTerminate, reqTaskInfo, reqPIDs, reqStat, reqMemLimits, reqUID, reqNodeID:
	case reqX11, reqNamespace:
	case reqCompletion:
		q.ended = NodesEnd{First: uint32(r.int()), Last: uint32(r.int()), RC: uint32(r.int())}
		n := r.size(usageMax)
		if n == 0 && v >= wire.V2405 { // measured in 24.11 and 26.05: five zeros without a step manager
			r.bytes(1)
			n = r.size(usageMax)
		}
		q.ended.Usage = r.bytes(int(n))
	case reqNamespaces:
		if v < wire.V2505 {
			return q, errUnknown
		}
	case reqPasswd, reqGroup:
		q.mode, q.id, q.text = r.int(), r.int(), r.text()
	case reqHost:
		q.mode, q.text = r.int(), r.text()
	case reqSLUID:
		if v < wire.V2511 {
			return q, errUnknown
		}
	case reqSignal:
		q.signal, q.flags, q.text = r.int(), uint32(r.int()), r.text()
		r.int() // who has asked slurmctld: not the peer's to say
	case reqHasPID, reqAddPID:
		q.pid = r.int()
	case reqSuspend, reqResume:
		if v < wire.V2405 {
			r.bytes(2) // of core specialisation
		}
	case reqReconfigure:
		if v >= wire.V2311 {
			r.skip(configMax)
		}
	case reqNotify:
		q.text = r.text()
	case reqAttach:
		q.attach = readAttachment(v, &r)
	default:
		return q, errUnknown
	}
	if errors.Is(r.err, io.EOF) {
		r.err = io.ErrUnexpectedEOF
	}
	return q, r.err
}

// fields reads a request's arguments, which are the machine's own. The first error stays.
type fields struct {
	in  io.Reader
	err error
}

func (r *fields) bytes(n int) []byte {
	b := make([]byte, n)
	if r.err == nil {
		_, r.err = io.ReadFull(r.in, b)
	}
	return b
}

func (r *fields) int() int32 {
	b := r.bytes(4)
	if r.err != nil {
		return 0
	}
	return int32(binary.NativeEndian.Uint32(b))
}

// size reads the length of what follows.
func (r *fields) size(most int32) int32 {
	n := r.int()
	if r.err == nil && (n < 0 || n > most) {
		r.err = fmt.Errorf("%d bytes, and %d is the limit", n, most)
	}
	if r.err != nil {
		return 0
	}
	return n
}

// sized reads an int and so many bytes.
func (r *fields) sized() []byte { return r.bytes(int(r.size(textMax))) }

// text reads a string with its length before it, which may count a NUL.
func (r *fields) text() string {
	text, _, _ := bytes.Cut(r.sized(), []byte{0})
	if r.err != nil {
		return ""
	}
	return string(text)
}

// skip reads bytes that are not needed, with its length before it.
func (r *fields) skip(most int32) {
	n := r.size(most)
	if r.err == nil {
		_, r.err = io.CopyN(io.Discard, r.in, int64(n))
	}
}
