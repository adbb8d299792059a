package wire

import (
	"fmt"
	"net/netip"
)

// Launch is what slurmd tells the step daemon of a step of srun, of the extern step, or of
// an interactive one.
type Launch struct {
	Step StepID
	Het  Het
	MPI  uint32 // the plugin's id
	// Tasks are the step's, on all of its nodes.
	Tasks                                 uint32
	PerBoard, PerCore, PerGres, PerSocket uint16
	JobMemory, StepMemory                 uint64 // MB
	Nodes                                 uint32
	CPUsPerTask                           uint16
	GresPerTask                           string
	ThreadsPerCore                        uint16
	Distribution                          uint32
	NodeCPUs, CoreSpec, AccelBind         uint16
	Cred                                  *Cred
	Ranks                                 [][]uint32 // of each node, its tasks' ranks
	RespPorts, IOPorts                    []uint16
	Srun                                  netip.AddrPort
	Env, JobControl                       []string
	Container, Dir                        string
	CPUBindFlags                          uint16
	CPUBind                               string
	MemBindFlags                          uint16
	MemBind                               string
	Argv                                  []string
	Flags                                 LaunchFlags
	Out, Err, In                          string // "" is srun's stream
	Profile                               uint32
	TaskProlog, TaskEpilog                string
	Debug                                 uint16
	Options                               []SpankOption
	Hosts                                 string // the step's nodes, a host list
	OpenMode                              uint8
	AcctFreq                              string
	CPUFreqMin, CPUFreqMax, CPUFreqGov    uint32
	GresBind, GresFreq                    string
	X11                                   X11
	OOMKillStep                           bool
	StepManager                           string
	TLSCert                               string
}

// Het says where the step stands in a heterogeneous job, whose number is Job, or a step of
// several components in a job that is none (Job is NoVal). Nodes, Tasks, Ranks and Hosts are of
// all components; Ranks has each node's, by its place in Hosts.
type Het struct {
	NodeOffset, Job, Nodes uint32
	Tasks                  uint32
	Offset, Steps          uint32
	TaskOffset             uint32
	Hosts                  string
	Ranks                  [][]uint32 `json:",omitempty"`
}

// Several reports whether other components of the job run the same step.
func (h *Het) Several() bool { return h.Steps > 1 && h.Steps != NoVal && h.Nodes != NoVal }

// X11 is where an extern step takes connections of X11 to.
type X11 struct {
	Flags      uint16
	Host       string
	Port       uint16
	Cookie     string
	Target     string
	TargetPort uint16
}

// SpankOption is an option of a plugin that the client was given.
type SpankOption struct {
	Type uint32
	// Name is "OPTION:PLUGIN".
	Name string
	// Value counts where HasValue is set: a flag has none.
	Value    string
	HasValue bool
}

// LaunchFlags are how a step is launched.
type LaunchFlags uint32

// The flags.
const (
	FlagMultiProg  LaunchFlags = 0x2
	FlagPTY        LaunchFlags = 0x4
	FlagBuffered   LaunchFlags = 0x8
	FlagLabel      LaunchFlags = 0x10
	FlagNoAlloc    LaunchFlags = 0x40
	FlagOvercommit LaunchFlags = 0x80
)

// DecodeLaunch reads a launch_tasks message's body, of a slurmd with the configuration.
func DecodeLaunch(c *Conf, body []byte) (*Launch, error) {
	r := newReader(c.Release, "launch_tasks", body)
	if c.Settings != nil {
		r.switchType = c.Settings.SwitchType
	}
	l := &Launch{Step: r.stepID("step_id")}
	if r.before(V2311) {
		r.u32("uid") // as in the credential
		r.u32("gid")
		r.str("user_name")
	}
	r.u32s("gids")
	r.het(l)
	l.MPI, l.Tasks = r.u32("mpi_plugin_id"), r.u32("ntasks")
	l.PerBoard, l.PerCore, l.PerGres, l.PerSocket = r.u16("ntasks_per_board"), r.u16("ntasks_per_core"), r.u16("ntasks_per_tres"), r.u16("ntasks_per_socket")
	l.JobMemory, l.StepMemory, l.Nodes = r.u64("job_mem_lim"), r.u64("step_mem_lim"), r.u32("nnodes")
	l.CPUsPerTask = r.u16("cpus_per_task")
	if r.since(V2311) {
		r.u16s("cpt_compact_array")
		r.u32s("cpt_compact_reps")
	}
	l.GresPerTask, l.ThreadsPerCore, l.Distribution = r.str("tres_per_task"), r.u16("threads_per_core"), r.u32("task_dist")
	l.NodeCPUs, l.CoreSpec, l.AccelBind = r.u16("node_cpus"), r.u16("job_core_spec"), r.u16("accel_bind_type")
	r.credOf(&l.Cred)
	l.Ranks = array(r.fits("nnodes", uint64(l.Nodes), 6), func() []uint32 {
		r.u16("tasks_to_launch")
		return r.u32s("global_task_ids")
	})
	l.RespPorts, l.Srun = r.ports("resp_port"), r.addr("orig_addr")
	l.Env, l.JobControl = r.strs("env"), r.strs("spank_job_env")
	l.Container, l.Dir = r.str("container"), r.str("cwd")
	l.CPUBindFlags, l.CPUBind, l.MemBindFlags, l.MemBind = r.u16("cpu_bind_type"), r.str("cpu_bind"), r.u16("mem_bind_type"), r.str("mem_bind")
	l.Argv, l.Flags = r.strs("argv"), LaunchFlags(r.u32("flags"))
	l.Out, l.Err, l.In, l.IOPorts = r.str("ofname"), r.str("efname"), r.str("ifname"), r.ports("io_port")
	if r.since(V2505) {
		l.TLSCert = r.str("alloc_tls_cert")
	}
	l.Profile, l.TaskProlog, l.TaskEpilog, l.Debug = r.u32("profile"), r.str("task_prolog"), r.str("task_epilog"), r.u16("slurmd_debug")
	switchData(r)
	r.options(l)
	r.launchTail(l)
	return l, r.end()
}

func (r *reader) launchTail(l *Launch) {
	if r.before(V2505) {
		r.str("alias_list")
	}
	l.Hosts, l.OpenMode, l.AcctFreq = r.name("complete_nodelist"), r.u8("open_mode"), r.str("acctg_freq")
	l.CPUFreqMin, l.CPUFreqMax, l.CPUFreqGov = r.u32("cpu_freq_min"), r.u32("cpu_freq_max"), r.u32("cpu_freq_gov")
	if r.before(V2302) {
		r.u32("select_jobinfo") // the plugin's id; cons_* have no data
	}
	l.GresBind, l.GresFreq = r.str("tres_bind"), r.str("tres_freq")
	l.X11 = X11{r.u16("x11"), r.str("x11_alloc_host"), r.u16("x11_alloc_port"), r.str("x11_magic_cookie"), r.str("x11_target"), r.u16("x11_target_port")}
	if r.since(V2405) {
		l.StepManager = r.str("stepmgr")
		if r.since(V2411) {
			l.OOMKillStep = r.bool("oom_kill_step")
		}
		if r.bool("job_record") {
			r.fail("job_record", errStepManager)
		}
	}
}

// het reads where a step stands in a heterogeneous job.
func (r *reader) het(l *Launch) {
	h := &l.Het
	h.NodeOffset, h.Job, h.Nodes = r.u32("het_job_node_offset"), r.u32("het_job_id"), r.u32("het_job_nnodes")
	if h.Nodes != NoVal {
		h.Ranks = array(r.fits("het_job_nnodes", uint64(h.Nodes), 4), func() []uint32 { return r.u32s("het_job_tids") })
	}
	h.Tasks = r.u32("het_job_ntasks")
	if h.Tasks != NoVal {
		array(r.fits("het_job_ntasks", uint64(h.Tasks), 4), func() uint32 { return r.u32("het_job_tid_offsets") })
	}
	h.Offset, h.Steps = r.u32("het_job_offset"), r.u32("het_job_step_cnt")
	if r.since(V2505) && h.Offset < NoVal && h.Steps > 0 {
		r.u32s("het_job_step_task_cnts")
	}
	h.TaskOffset, h.Hosts = r.u32("het_job_task_offset"), r.str("het_job_node_list")
}

// credOf reads a credential with its release before it.
func (r *reader) credOf(c **Cred) {
	if v := Release(r.u16("cred_version")); v != r.v && r.err == nil {
		r.fail("cred_version", errRelease(v))
	}
	*c = r.cred()
}

// switchNone is the number of the plugin switch/none, which has no data.
const switchNone = 100

// switchData reads the data of the switch's plugin. From 23.11 on no plugin is loaded where a
// site has no such network, and nothing is sent; 24.11 has the data in the credential.
func switchData(r *reader) {
	switch {
	case r.since(V2411):
	case r.before(V2311):
		if id := r.u32("switch_job"); id != switchNone && r.err == nil {
			r.fail("switch_job", fmt.Errorf("the site has the switch plugin %d (SwitchType in slurm.conf), which stepd does not support under Slurm %s", id, r.v))
		}
	case r.switchType != "":
		r.fail("switch_job", fmt.Errorf("the site has SwitchType=%s in slurm.conf, which stepd does not support under Slurm %s", r.switchType, r.v))
	}
}

func (r *reader) ports(field string) []uint16 {
	return array(r.fits(field, uint64(r.u16(field)), 2), func() uint16 { return r.u16(field) })
}

// options reads what clients were given of plugins' options.
func (r *reader) options(l *Launch) {
	if tag := r.str("options"); tag != "job_options" && r.err == nil {
		r.fail("options", errTag(tag))
		return
	}
	l.Options = array(r.count("options", 12), func() (o SpankOption) {
		o.Type, o.Name = r.u32("options"), r.name("options")
		o.Value, o.HasValue = r.optional("options")
		return o
	})
}
