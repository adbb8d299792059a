package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Stream is what slurmd writes to a step daemon that it has started, up to the answer that
// it waits for.
type Stream struct {
	Conf          *Conf
	Cgroup        []byte // cgroup.conf, packed
	Tree          Tree
	Parent        string // where the end is reported, "" is slurmctld
	ParentAddr    netip.AddrPort
	Client        netip.AddrPort // that has asked slurmd
	ClientRelease Release
	Batch         *Batch     // or
	Launch        *Launch    // one of them
	Scope         string     // the cgroup scope of slurmd, since 24.11
	Container     []byte     // job_container.conf, packed: since 23.02, of a plugin that has one
	NodeGres      []NodeGres // of the node
	GresLines     []GresLine // gres.conf, of a step that may bind to it
	MPIType       string
	MPIConf       []byte
}

// Tree is the step daemon's place in the tree by which steps are told to have ended.
type Tree struct{ Rank, Parent, Children, Depth, MaxDepth int32 }

// blobMax bounds a piece of the stream, in bytes: a request to slurmd is at most 1 GiB there.
const blobMax = 64 << 20

// Reserved numbers of steps.
const (
	StepExtern      uint32 = 0xfffffffc
	StepBatch       uint32 = 0xfffffffb
	StepInteractive uint32 = 0xfffffffa
	stepReserved    uint32 = 0xfffffff0 // and all above
)

// pipe reads the pieces of a stream: integers are the machine's own.
type pipe struct {
	in  io.Reader
	err error
}

func (p *pipe) fail(what string, err error) {
	if p.err == nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		p.err = fmt.Errorf("cannot read slurmd's %s: %w", what, err)
	}
}

func (p *pipe) read(what string, n int) []byte {
	if p.err != nil {
		return make([]byte, min(n, 8))
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(p.in, b); err != nil {
		p.fail(what, err)
	}
	return b
}

func (p *pipe) int(what string) int32 { return int32(binary.NativeEndian.Uint32(p.read(what, 4))) }

func (p *pipe) u16(what string) uint16 { return binary.NativeEndian.Uint16(p.read(what, 2)) }

// blob reads a piece with its length before it. Memory is taken for what has come.
func (p *pipe) blob(what string) []byte { return p.sized(what, p.int(what)) }

// text is blob of a string with its NUL; "" is none.
func (p *pipe) text(what string) string {
	b, ended := bytes.CutSuffix(p.blob(what), []byte{0})
	if p.err == nil && !ended && len(b) > 0 || bytes.IndexByte(b, 0) >= 0 {
		p.fail(what, errors.New("a string does not end with its only NUL"))
	}
	return string(b)
}

func (p *pipe) sized(what string, n int32) []byte {
	if p.err != nil {
		return nil
	}
	if n < 0 || n > blobMax {
		p.fail(what, fmt.Errorf("%d bytes, and %d is the limit", n, blobMax))
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(p.in, int64(n)))
	if err == nil && len(b) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		p.fail(what, err)
		return nil
	}
	return b
}

// ReadStream reads what slurmd writes. It reads no byte more than there is: slurmd waits for
// the answer. An error names the piece, or the record and its field.
func ReadStream(in io.Reader) (*Stream, error) {
	p := &pipe{in: in}
	s := new(Stream)
	var err error
	if s.Conf, err = ReadConf(in); err != nil {
		return nil, err
	}
	v := s.Conf.Release
	if v >= V2302 {
		p.blob("slurm.conf") // its nodes
	} else {
		s.Cgroup = p.blob("cgroup.conf")
		p.blob("acct_gather.conf")
	}
	batch := p.int("type of launch") == 0
	s.Tree = Tree{p.int("tree"), p.int("tree"), p.int("tree"), p.int("tree"), p.int("tree")}
	s.neighbours(p, v)
	body := p.blob("request")
	if p.err != nil {
		return nil, p.err
	}
	if batch {
		s.Batch, err = DecodeBatch(s.Conf, body)
	} else {
		s.Launch, err = DecodeLaunch(s.Conf, body)
	}
	if err != nil {
		return nil, err
	}
	if v >= V2411 {
		s.Scope = p.text("scope")
	}
	if v >= V2302 {
		s.Cgroup = p.blob("cgroup.conf")
		p.blob("acct_gather.conf")
	}
	if s.Conf.Settings.sendsContainer() {
		s.Container = p.blob("job_container.conf")
	}
	s.resources(p, v)
	if p.err != nil {
		return nil, p.err
	}
	return s, nil
}

// neighbours reads the addresses of the parent, and of the command that has asked.
func (s *Stream) neighbours(p *pipe, v Release) {
	if v >= V2311 {
		s.Parent = string(bytes.TrimSuffix(p.blob("parent"), []byte{0})) // measured: no NUL, unlike other strings
	} else {
		s.ParentAddr = sockaddr(p.read("parent", 128))
	}
	client := newReader(v, "client", p.blob("client"))
	s.Client = client.addr("address")
	if v < V2311 {
		p.blob("own address")
	}
	if client.err != nil {
		p.fail("client", client.err)
	}
	for range p.u16("CPU frequencies") {
		p.read("CPU frequencies", cpuFreqSize)
	}
	s.ClientRelease = Release(p.u16("client's release"))
}

// cpuFreqSize is the size of what slurmd has of one CPU's frequencies and governors: a
// structure of C, the same in all releases.
const cpuFreqSize = 4 + 64*4 + 2*24 + 6*4

// sockaddr reads a sockaddr_storage; the zero value is none.
func sockaddr(b []byte) netip.AddrPort {
	if len(b) < 128 {
		return netip.AddrPort{}
	}
	switch port := binary.BigEndian.Uint16(b[2:]); binary.NativeEndian.Uint16(b) {
	case 2: // AF_INET
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port)
	case 10: // AF_INET6
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[8:24])), port)
	}
	return netip.AddrPort{}
}

// resources reads what the node's plugins have of the step.
func (s *Stream) resources(p *pipe, v Release) {
	s.NodeGres = packed(p, v, "gres", nodeGres)
	if s.sendsGresConf(v) {
		s.GresLines = packed(p, v, "gres.conf", gresLines)
	}
	l := s.Launch
	if l == nil {
		return
	}
	if l.Step.Step == StepExtern || l.Step.Step == StepInteractive {
		return
	}
	s.MPIType = string(p.blob("type of MPI"))
	if v < V2311 || s.MPIType != "" {
		n := binary.BigEndian.Uint32(p.read("mpi.conf", 4))
		s.MPIConf = p.sized("mpi.conf", int32(min(n, blobMax+1)))
	}
}

// packed reads a piece that is a record.
func packed[T any](p *pipe, v Release, what string, decode func(Release, []byte) (T, error)) T {
	record, err := decode(v, p.blob(what))
	if err != nil {
		p.fail(what, err)
	}
	return record
}

// sendsGresConf reports whether slurmd sends gres.conf: for a step that has generic resources,
// and in 22.05 for one that binds its tasks to them. A step that is no user's has its job's.
func (s *Stream) sendsGresConf(v Release) bool {
	switch l := s.Launch; {
	case v < V2302:
		return l != nil && (l.AccelBind != 0 || l.GresBind != "" || l.GresFreq != "")
	case l == nil:
		return len(s.Batch.Cred.JobGres) > 0
	case l.Step.Step >= stepReserved:
		return len(l.Cred.JobGres) > 0
	default:
		return len(l.Cred.StepGres) > 0
	}
}
