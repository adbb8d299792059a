package wire

import "encoding/binary"

// PMICommand is what a record between srun's server of PMI-2 and a step daemon asks for, or
// answers. They are no Messages: the records have no header, and the same form in all releases.
type PMICommand uint16

// The commands that this side uses.
const (
	PMISpawn       PMICommand = 2 // to srun: start another step
	PMISpawnResult PMICommand = 3 // from srun: whether the step's tasks run
	PMIPublish     PMICommand = 4
	PMIUnpublish   PMICommand = 5
	PMILookup      PMICommand = 6
)

// PMISpawnRequest asks srun to start another step of its job (PMISpawn).
type PMISpawnRequest struct {
	// Token is munge's, for srun's user. srun trusts root's and that user's own.
	Token string
	// Node is where srun sends the result.
	Node   string
	Preput []PMIPair
	Apps   []PMIApp
}

// PMIApp is one command of a PMISpawnRequest.
type PMIApp struct {
	Command string
	Args    []string
	Tasks   uint32
	Info    []PMIPair
}

// PMIPair is a key with its value.
type PMIPair struct{ Key, Value string }

// text packs a string with its NUL also where it is empty: srun takes NULL for the end of a
// command's arguments.
func (w *writer) text(s string) {
	w.u32(uint32(len(s) + 1))
	w.b = append(append(w.b, s...), 0)
}

func (w *writer) pairs(list []PMIPair) {
	for _, p := range list {
		w.text(p.Key)
		w.text(p.Value)
	}
}

// pmiFrame is a record with its length before it.
func pmiFrame(c PMICommand, fill func(w *writer)) []byte {
	w := &writer{}
	w.u32(0) // the length, below
	w.u16(uint16(c))
	fill(w)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	return w.b
}

// Frame is the request as it is sent.
func (m *PMISpawnRequest) Frame() []byte {
	return pmiFrame(PMISpawn, func(w *writer) {
		w.u32(authMunge)
		w.str(m.Token)
		w.u32(0) // the number of the spawn, which srun gives
		w.text(m.Node)
		w.u32(uint32(len(m.Apps)))
		w.u32(uint32(len(m.Preput)))
		w.pairs(m.Preput)
		for i := range m.Apps {
			a := &m.Apps[i]
			w.text(a.Command)
			w.u32(a.Tasks)
			w.u32(uint32(len(a.Args)))
			for _, arg := range a.Args {
				w.text(arg)
			}
			w.u32(uint32(len(a.Info)))
			w.pairs(a.Info)
		}
	})
}

// PMINameFrame publishes, unpublishes or looks up a name. The port is PMIPublish's.
func PMINameFrame(c PMICommand, name, port string) []byte {
	return pmiFrame(c, func(w *writer) {
		w.text(name)
		if c == PMIPublish {
			w.text(port)
		}
	})
}

// PMINameResult reads the answer to PMIPublish and PMIUnpublish: 0, or an error.
func PMINameResult(b []byte) (uint32, error) {
	r := newReader(0, "pmi_name_result", b)
	rc := r.u32("rc")
	return rc, r.end()
}

// PMIPort reads the answer to PMILookup; found is false for a name that is not published.
func PMIPort(b []byte) (port string, found bool, err error) {
	r := newReader(0, "pmi_port", b)
	port, found = r.optional("port")
	return port, found, r.end()
}

// SpawnResult is srun's answer to a PMISpawnRequest: at once, when RC says whether the new step's
// srun was started, and once more when the step's tasks run or have failed to start.
type SpawnResult struct {
	Seq uint32 // srun's number of the spawn
	RC  uint32
	Job string // of the new ranks: "12.0-1"
}

// ParseSpawnResult reads a SpawnResult, after its length and command.
func ParseSpawnResult(b []byte) (SpawnResult, error) {
	r := newReader(0, "pmi_spawn_result", b)
	m := SpawnResult{Seq: r.u32("seq"), RC: r.u32("rc")}
	r.u16("port")
	m.Job = r.str("jobid")
	r.u32s("error_codes")
	return m, r.end()
}
