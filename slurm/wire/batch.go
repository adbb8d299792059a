package wire

// Batch is what slurmd tells the step daemon of a batch job's script.
type Batch struct {
	Job, HetJob         uint32
	Partition           string
	Tasks               uint32
	NodeMemory          uint64 // MB of each node
	OpenMode            uint8
	Overcommit          bool
	ArrayJob, ArrayTask uint32 // NoVal outside arrays
	AcctFreq            string
	Container           string
	CPUBindFlags        uint16
	CPUsPerTask         uint16
	Restarts, CoreSpec  uint16
	CPUs                []Repeated[uint16] // of each node
	CPUBind             string
	Hosts               string
	Script              string
	Dir                 string
	Err, In, Out        string
	Argv                []string
	JobControl, Env     []string
	JobMemory           uint64
	Cred                *Cred
	Account, QOS        string
	Reservation         string
	Profile             uint32
	GresBind, GresFreq  string
	CPUFreqMin          uint32
	CPUFreqMax          uint32
	CPUFreqGov          uint32
	OOMKillStep         bool
	GresPerTask         string
}

// DecodeBatch reads a batch_job_launch message's body, of a slurmd with the configuration.
func DecodeBatch(c *Conf, body []byte) (*Batch, error) {
	r := newReader(c.Release, "batch_job_launch", body)
	b := new(Batch)
	if r.before(V2511) {
		b.Job = r.u32("job_id")
	}
	b.HetJob = r.u32("het_job_id")
	if r.before(V2311) {
		r.u32("uid") // as in the credential
		r.u32("gid")
		r.str("user_name")
	}
	r.u32s("gids")
	b.Partition, b.Tasks, b.NodeMemory = r.str("partition"), r.u32("ntasks"), r.u64("pn_min_memory")
	b.OpenMode, b.Overcommit = r.u8("open_mode"), r.bool("overcommit")
	b.ArrayJob, b.ArrayTask = r.u32("array_job_id"), r.u32("array_task_id")
	b.AcctFreq, b.Container = r.str("acctg_freq"), r.str("container")
	b.CPUBindFlags, b.CPUsPerTask, b.Restarts, b.CoreSpec = r.u16("cpu_bind_type"), r.u16("cpus_per_task"), r.u16("restart_cnt"), r.u16("job_core_spec")
	b.CPUs = repeated(r, "num_cpu_groups", r.u16s)
	if r.before(V2411) {
		r.str("alias_list")
	}
	b.CPUBind, b.Hosts, b.Script, b.Dir = r.str("cpu_bind"), r.name("nodes"), r.str("script"), r.str("work_dir")
	b.Err, b.In, b.Out = r.str("std_err"), r.str("std_in"), r.str("std_out")
	r.u32("argc")
	b.Argv, b.JobControl = r.strs("argv"), r.strs("spank_job_env")
	r.u32("envc")
	b.Env, b.JobMemory = r.strs("environment"), r.u64("job_mem")
	r.credOf(&b.Cred)
	if r.err == nil && r.since(V2511) {
		b.Job = b.Cred.Step.Job
	}
	if r.before(V2302) {
		r.u32("select_jobinfo")
	}
	b.Account, b.QOS, b.Reservation, b.Profile = r.str("account"), r.str("qos"), r.str("resv_name"), r.u32("profile")
	b.GresBind, b.GresFreq = r.str("tres_bind"), r.str("tres_freq")
	if r.since(V2505) {
		b.GresPerTask = r.str("tres_per_task")
	}
	if r.since(V2411) {
		b.CPUFreqMin, b.CPUFreqMax, b.CPUFreqGov, b.OOMKillStep = r.u32("cpu_freq_min"), r.u32("cpu_freq_max"), r.u32("cpu_freq_gov"), r.bool("oom_kill_step")
	}
	return b, r.end()
}
