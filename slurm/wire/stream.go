package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
)

// Stream is what slurmd writes to a step daemon that it has started, up to the answer that
// it waits for.
type Stream struct {
	Conf *Conf
	// Config are the files as slurmd has read them, since 23.02: package slurmconf has them
	// of the file before.
	Config                []byte
	Cgroup                []byte // cgroup.conf, packed
	Tree                  Tree
	Parent                string // where the end is reported, "" is slurmctld
	ParentAddr            netip.AddrPort
	Client                netip.AddrPort // that has asked slurmd
	ClientRelease         Release
	Batch                 *Batch  // or
	Launch                *Launch // one of them
	Scope                 string  // the cgroup scope of slurmd, since 24.11
	GresContext, GresConf []byte
	MPIType               string
	MPIConf               []byte
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
	conf := p.blob("configuration of the node")
	if p.err != nil {
		return nil, p.err
	}
	var err error
	if s.Conf, err = decodeConf(conf); err != nil {
		return nil, err
	}
	v := s.Conf.Release
	if v >= V2302 {
		s.Config = p.blob("slurm.conf")
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
		s.Batch, err = DecodeBatch(v, body)
	} else {
		s.Launch, err = DecodeLaunch(v, body)
	}
	if err != nil {
		return nil, err
	}
	if v >= V2411 {
		s.Scope = string(p.blob("scope"))
	}
	if v >= V2302 {
		s.Cgroup = p.blob("cgroup.conf")
		p.blob("acct_gather.conf")
	}
	s.resources(p, v)
	return s, p.err
}

// neighbours reads the addresses of the parent, and of the command that has asked.
func (s *Stream) neighbours(p *pipe, v Release) {
	if v >= V2311 {
		s.Parent = string(p.blob("parent"))
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
	if n := p.u16("CPU frequencies"); n != 0 {
		p.fail("CPU frequencies", errors.New("the node has some, which stepd cannot read"))
	}
	s.ClientRelease = Release(p.u16("client's release"))
}

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
	s.GresContext = p.blob("gres")
	l := s.Launch
	if l == nil {
		return
	}
	if l.AccelBind != 0 || l.GresBind != "" || l.GresFreq != "" {
		s.GresConf = p.blob("gres.conf")
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
