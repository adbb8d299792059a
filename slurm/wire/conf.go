package wire

import (
	"encoding/binary"
	"io"
)

// Conf is what slurmd knows of its node, and of its own files.
type Conf struct {
	Release Release
	// Host is the machine's name, Node its name in slurm.conf.
	Host, Node                            string
	CPUs, Boards, Sockets, Cores, Threads uint16
	// SpecCPUs are the CPUs kept from jobs, a list.
	SpecCPUs   string
	SpecCores  uint16
	SpecMemory uint64 // MB
	RealMemory uint64 // MB
	// BlockMap makes the machine's CPUs of Slurm's abstract ones, BlockMapInv the reverse.
	BlockMap, BlockMapInv []uint16
	Spool                 string
	LogFile               string
	Debug, SyslogDebug    uint32
	ConfFile              string // since 24.05
	TopoAddr, TopoPattern string
	Port                  uint16
	Settings              *Settings // since 23.02
	TRES                  []TRES    // what the site counts, in slurmctld's order
}

// ReadConf reads what slurmd writes to a step daemon that it has started for a prolog or an
// epilog of plugins: its configuration alone. An error names the record and its field.
func ReadConf(in io.Reader) (*Conf, error) {
	p := &pipe{in: in}
	b := p.blob("configuration of the node")
	if p.err != nil {
		return nil, p.err
	}
	return decodeConf(b)
}

// decodeConf reads a configuration as the last minor version of its release sends it, or else
// as an earlier one does: the one that leaves nothing is right. The error is the last version's.
func decodeConf(b []byte) (*Conf, error) {
	c, err := decodeConfWithout(nil, b)
	if err == nil || len(b) < 2 {
		return c, err
	}
	var absent []string
	for _, keys := range late[Release(binary.BigEndian.Uint16(b))] {
		absent = append(absent, keys...)
		if c, err := decodeConfWithout(absent, b); err == nil {
			return c, nil
		}
	}
	return nil, err
}

func decodeConfWithout(absent []string, b []byte) (*Conf, error) {
	r := newReader(0, "slurmd_conf", b)
	r.absent = absent
	r.v = Release(r.u16("protocol"))
	c := &Conf{Release: r.v}
	if r.err == nil {
		if err := r.v.check(); err != nil {
			return nil, err
		}
	}
	c.Host = r.name("hostname")
	c.CPUs, c.Boards, c.Sockets, c.Cores, c.Threads = r.u16("cpus"), r.u16("boards"), r.u16("sockets"), r.u16("cores"), r.u16("threads")
	if r.since(V2311) {
		r.u16("actual_threads")
	}
	c.SpecCPUs, c.SpecCores, c.SpecMemory, c.RealMemory = r.str("cpu_spec_list"), r.u16("core_spec_cnt"), r.u64("mem_spec_limit"), r.u64("real_memory")
	r.u16("block_map_size")
	c.BlockMap, c.BlockMapInv = r.u16s("block_map"), r.u16s("block_map_inv")
	if r.since(V2405) {
		c.ConfFile = r.str("conffile")
	}
	c.Spool, c.Node, c.LogFile = r.str("spooldir"), r.name("node_name"), r.str("logfile")
	c.Debug, c.SyslogDebug = r.u32("debug_level"), r.u32("syslog_debug")
	if r.since(V2405) {
		r.str("stepd_loc")
	}
	if r.since(V2302) {
		r.bool("daemonize")
	} else {
		r.u32("daemonize")
	}
	c.TopoAddr, c.TopoPattern, c.Port = r.str("node_topo_addr"), r.str("node_topo_pattern"), r.u16("port")
	if r.since(V2302) {
		c.Settings = decodeSettings(r)
	}
	c.TRES = r.tres("tres")
	return c, r.end()
}

// tres reads a list of trackable resources.
func (r *reader) tres(field string) []TRES {
	n := r.u32(field)
	if n == NoVal {
		return nil
	}
	return array(r.fits(field, uint64(n), 28), func() (t TRES) {
		r.u64(field) // seconds
		r.u64(field) // how many there are
		t.ID = r.u32(field)
		t.Name, t.Type = r.str(field), r.str(field)
		return t
	})
}
