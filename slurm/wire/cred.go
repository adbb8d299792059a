package wire

import (
	"bytes"
	"net/netip"
	"time"
)

// StepID names a step. HetComp is NoVal but for a component of a heterogeneous job.
type StepID struct {
	SLUID              uint64 // of the job, since 24.11
	Job, Step, HetComp uint32
}

func (r *reader) stepID(field string) (id StepID) {
	if r.since(V2411) {
		id.SLUID = r.u64(field)
	}
	id.Job, id.Step, id.HetComp = r.u32(field), r.u32(field), r.u32(field)
	return id
}

// Cred is a job credential: what slurmctld has given to the step. slurmd has verified it.
type Cred struct {
	Step       StepID
	UID, GID   uint32
	Name       string // "" where slurmctld does not send the identity
	Gecos      string
	Dir, Shell string
	GIDs       []uint32
	GroupNames []string // none, or one for each of GIDs

	JobGres, StepGres []Gres
	CoreSpec          uint16
	Account           string
	Comment           string
	Constraints       string
	Partition         string
	Reservation       string
	Licenses          string
	Restarts          uint16
	StdErr, StdIn     string
	StdOut            string
	StepHosts         string // a host list
	Begin, End        time.Time
	Created           time.Time

	// Cores are the job's and the step's of all nodes of the job, in their order, which Shape
	// describes.
	JobCores, StepCores []bool
	Shape               Shape
	CPUs                []Repeated[uint16] // of each node, of the job
	JobNodes, JobTasks  uint32
	JobHosts            string
	// NodeAddrs are where the slurmd of each node of the job is, where slurm.conf does not say it
	// (nodes of a cloud); since 23.11.
	NodeAddrs  []netip.AddrPort
	JobMemory  []Repeated[uint64] // MB of each node of the job, with the top bit as MEM_PER_CPU
	StepMemory []Repeated[uint64] // and of the step
	SELinux    string
	// Signature is the key of srun's streams.
	Signature []byte
}

// Repeated is a value of so many nodes, one after the other.
type Repeated[T any] struct {
	Value T
	Nodes uint32
}

// Shape is the sockets and cores of nodes, each entry of as many nodes as it says.
type Shape []struct {
	Cores, Sockets uint16 // cores of a socket, sockets of a node
	Nodes          uint32
}

// Gres is a generic resource of a job or step, on each of its nodes.
type Gres struct {
	ID     uint32 // by its name: Slurm's hash
	Flags  uint16
	Type   string
	Total  uint64
	Counts []uint64 // on each node
	// Bits are the devices of each node that are given, nil where there is none on it.
	Bits [][]bool
}

// Limits of a credential: what a cluster has is far below.
const (
	coresMax   = 1 << 24 // of all nodes of a job
	devicesMax = 1 << 20 // of a gres on a node
	gresMagic  = 0x438a34d4
)

// cred reads a credential. It has no length of its own.
func (r *reader) cred() *Cred {
	outer := r.record
	r.record += ".cred"
	defer func() { r.record = outer }()
	c := &Cred{Step: r.stepID("step_id"), UID: r.u32("uid"), GID: r.u32("gid")}
	c.Name, c.Gecos, c.Dir, c.Shell = r.name("pw_name"), r.str("pw_gecos"), r.str("pw_dir"), r.str("pw_shell")
	c.GIDs, c.GroupNames = r.u32s("gids"), r.strs("gr_names")
	c.JobGres, c.StepGres = r.gres("job_gres", false), r.gres("step_gres", true)
	c.CoreSpec = r.u16("job_core_spec")
	c.Account = r.str("account")
	c.NodeAddrs = r.aliases()
	c.Comment, c.Constraints = r.str("comment"), r.str("constraints")
	if r.since(V2302) {
		c.End = r.time("end_time")
		r.str("extra")
		if r.since(V2605) {
			r.u16("exclusive")
		}
		r.u16("oversubscribe")
	}
	c.Partition = r.partition()
	if r.since(V2605) {
		r.str("qos")
	}
	c.Reservation = r.str("reservation")
	c.Restarts = r.u16("restart_count")
	if r.since(V2302) {
		c.Begin = r.time("start_time")
	}
	c.StdErr, c.StdIn, c.StdOut = r.str("std_err"), r.str("std_in"), r.str("std_out")
	c.StepHosts = r.str("step_hostlist")
	r.u16("x11")
	c.Created = r.time("ctime")
	r.credCores(c)
	c.SELinux = r.str("selinux_context")
	if r.since(V2411) {
		r.mem("switch")
	}
	c.Signature = r.mem("signature")
	return c
}

// aliases reads the addresses of nodes that only the controller knows.
func (r *reader) aliases() (addrs []netip.AddrPort) {
	if r.since(V2311) {
		addrs = array(r.count("job_node_addrs", 2), func() netip.AddrPort { return r.addr("job_node_addrs") })
	}
	r.str("alias_list")
	return addrs
}

// partition reads the job's partition. 23.02 to 24.05 hide a switch plugin's data behind the
// name's NUL, which older readers of the same record take for its end.
func (r *reader) partition() string {
	if r.before(V2302) || r.since(V2411) {
		return r.str("partition")
	}
	name, _, _ := bytes.Cut(r.mem("partition"), []byte{0})
	return string(name)
}

func (r *reader) time(field string) time.Time {
	if s := r.u64(field); s != 0 {
		return time.Unix(int64(s), 0).UTC()
	}
	return time.Time{}
}

// credCores reads which cores and how much memory are given.
func (r *reader) credCores(c *Cred) {
	cores := r.u32("total_cores")
	if cores > coresMax {
		r.fail("total_cores", errMany(cores, coresMax))
		return
	}
	c.JobCores, c.StepCores = r.bits("job_core_bitmap", cores), r.bits("step_core_bitmap", cores)
	if n := r.u16("core_array_size"); n > 0 {
		perSocket, sockets, reps := r.u16s("cores_per_socket"), r.u16s("sockets_per_node"), r.u32s("sock_core_rep_count")
		if len(perSocket) != len(sockets) || len(sockets) != len(reps) {
			r.fail("core_array", errLengths)
			return
		}
		c.Shape = make(Shape, len(reps))
		for i := range reps {
			c.Shape[i].Cores, c.Shape[i].Sockets, c.Shape[i].Nodes = perSocket[i], sockets[i], reps[i]
		}
	}
	c.CPUs = repeated(r, "cpu_array", r.u16s)
	c.JobNodes, c.JobTasks, c.JobHosts = r.u32("job_nhosts"), r.u32("job_ntasks"), r.str("job_hostlist")
	if r.since(V2302) {
		c.Licenses = r.str("licenses")
	}
	c.JobMemory = repeated(r, "job_mem_alloc", r.u64s)
	c.StepMemory = repeated(r, "step_mem_alloc", r.u64s)
}

// repeated reads values with the number of nodes of each.
func repeated[T any](r *reader, field string, values func(string) []T) []Repeated[T] {
	if r.u32(field) == 0 {
		return nil
	}
	v, reps := values(field), r.u32s(field+"_reps")
	if len(v) != len(reps) {
		r.fail(field, errLengths)
		return nil
	}
	out := make([]Repeated[T], len(v))
	for i := range v {
		out[i] = Repeated[T]{v[i], reps[i]}
	}
	return out
}

// gres reads the list of a job's or of a step's generic resources.
func (r *reader) gres(field string, ofStep bool) []Gres {
	return array(r.fits(field, uint64(r.u16(field)), 60), func() Gres { return r.oneGres(field, ofStep) })
}

func (r *reader) oneGres(field string, ofStep bool) (g Gres) {
	if magic := r.u32(field); magic != gresMagic && r.err == nil {
		r.fail(field, errMagic(magic))
		return g
	}
	g.ID = r.u32(field)
	r.u16(field) // CPUs for each
	g.Flags = r.u16(field)
	for range 5 { // for each job or step, node, socket, task; memory
		r.u64(field)
	}
	if !ofStep {
		r.u16(field) // tasks for each
	}
	g.Total = r.u64(field)
	if !ofStep || r.since(V2405) {
		g.Type = r.str(field)
	}
	nodes := r.fits(field, uint64(r.u32(field)), 1)
	if ofStep {
		r.bits(field, coresMax) // the nodes that have it
	}
	g.Counts = r.optionalU64s(field)
	g.Bits = r.nodeBits(field, nodes)
	r.perBit(field, nodes)
	if ofStep {
		return g
	}
	r.nodeBits(field, nodes) // of steps
	if r.bool(field) {       // counts of steps
		array(r.fits(field, uint64(nodes), 8), func() uint64 { return r.u64(field) })
	}
	r.perBit(field, nodes)
	return g
}

func (r *reader) optionalU64s(field string) []uint64 {
	if !r.bool(field) {
		return nil
	}
	return r.u64s(field)
}

func (r *reader) nodeBits(field string, nodes int) [][]bool {
	if !r.bool(field) {
		return nil
	}
	return array(r.fits(field, uint64(nodes), 4), func() []bool { return r.bits(field, devicesMax) })
}

// perBit skips how much of each device of each node is given, since 23.11.
func (r *reader) perBit(field string, nodes int) {
	if r.since(V2311) {
		array(r.fits(field, uint64(nodes), 1), func() []uint64 { return r.optionalU64s(field) })
	}
}
