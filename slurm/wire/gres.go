package wire

import "slices"

// NodeGres is a generic resource of the node, as slurmd knows it.
type NodeGres struct {
	Name  string
	ID    uint32 // of its name: Gres.ID
	Count uint64
	// Devices are those that slurmd has files of, in the order of gres.conf.
	Devices []NodeDevice
	// EnvFlags are the variables that name a task's GPUs, of gpu and shard.
	EnvFlags GresEnvFlags
	// Shares are how many of a shared resource (mps, shard) each GPU has.
	Shares []GresShare
}

// NodeDevice is a device file of a generic resource.
type NodeDevice struct {
	// Index is its bit in a credential; several files may have one. Number is the one that its
	// name ends in.
	Index, Number int32
	// Kind is DeviceBlock or DeviceChar, and else no device.
	Kind         uint32
	Major, Minor uint32
	Path         string
	UniqueID     string // of a part of a GPU, "" for a whole one
}

// The kinds of a device.
const (
	DeviceBlock uint32 = 1
	DeviceChar  uint32 = 2
)

// GresShare is how many of a shared resource a device has.
type GresShare struct{ Count, Index uint64 }

// GresEnvFlags say which variables name a task's GPUs.
type GresEnvFlags uint32

// The flags.
const (
	GresEnvCUDA   GresEnvFlags = 0x20
	GresEnvROCR   GresEnvFlags = 0x40
	GresEnvOpenCL GresEnvFlags = 0x80
	GresEnvLevel0 GresEnvFlags = 0x800
)

// GresLine is a line of gres.conf, or a part of one.
type GresLine struct {
	Name, Type string
	Count      uint64
	CPUs       []bool // that are near, of the machine's; nil is all
	Links      string // to the GPUs of the node, a list of weights; "" is none
}

// nodeGres reads the generic resources of the node.
func nodeGres(v Release, b []byte) ([]NodeGres, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := newReader(v, "gres", b)
	all := array(r.count("count", 32), func() NodeGres { return oneNodeGres(r) })
	return all, r.end()
}

func oneNodeGres(r *reader) (g NodeGres) {
	r.u32("flags")
	g.Name = r.name("name")
	r.str("name_colon")
	r.u32("name_colon_len")
	r.str("type")
	if r.since(V2302) { // of a resource without a plugin
		g.Devices = devices(r)
	}
	g.ID, g.Count = r.u32("id"), r.u64("total")
	switch g.Name {
	case "gpu":
		g.Devices, g.EnvFlags = devices(r), GresEnvFlags(r.u32("env_flags"))
	case "nic":
		g.Devices = devices(r)
	case "mps", "shard":
		g.Devices = devices(r)
		if g.Name == "shard" {
			g.EnvFlags = GresEnvFlags(r.u32("env_flags"))
		}
		g.Shares = array(listCount(r, "shares", 16), func() GresShare { return GresShare{r.u64("shares"), r.u64("shares")} })
	}
	return g
}

// listCount is count of a list that may be NULL.
func listCount(r *reader, field string, size int) int {
	n := r.u32(field)
	if n == NoVal {
		return 0
	}
	return r.fits(field, uint64(n), size)
}

func devices(r *reader) []NodeDevice {
	return array(listCount(r, "devices", 28), func() (d NodeDevice) {
		d.Index, d.Number = int32(r.u32("devices")), int32(r.u32("devices"))
		d.Kind, d.Major, d.Minor = r.u32("devices"), r.u32("devices"), r.u32("devices")
		d.Path, d.UniqueID = r.name("devices"), r.name("devices")
		if r.since(V2511) {
			r.str("devices")
		}
		if d.Index < 0 || d.Index >= devicesMax {
			r.fail("devices", errMany(uint32(d.Index), devicesMax))
		}
		return d
	})
}

// gresLines reads gres.conf, which slurmd sends for a step that may bind to it.
func gresLines(v Release, b []byte) ([]GresLine, error) {
	if len(b) == 0 {
		return nil, nil
	}
	r := newReader(v, "gres.conf", b)
	r.u32("autodetect")
	r.u32("count")
	lines := array(listCount(r, "lines", 48), func() (l GresLine) {
		r.u32("flags")
		l.Count = r.u64("count")
		r.u32("cpu_count")
		r.str("cpus")
		l.CPUs = r.bits("cpus_bitmap", coresMax)
		r.str("file")
		l.Links, l.Name, l.Type = r.str("links"), r.str("name"), r.str("type")
		r.str("unique_id")
		r.u32("id")
		return l
	})
	return lines, r.end()
}

// Gres is the node's resource of a credential's, nil where the node has none.
func (s *Stream) Gres(id uint32) *NodeGres {
	if i := slices.IndexFunc(s.NodeGres, func(g NodeGres) bool { return g.ID == id }); i >= 0 {
		return &s.NodeGres[i]
	}
	return nil
}
