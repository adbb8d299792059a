package pmix

import (
	"testing"

	"stepd/internal/wire"
	"stepd/step"
	"stepd/step/launch"
)

// TestSharesTopology: the tasks get of the machine's description what they would
// find themselves, or nothing.
func TestSharesTopology(t *testing.T) {
	for _, c := range []struct {
		v1   map[string]string
		keep bool
		want bool
	}{
		{nil, false, true},
		{nil, true, false},
		{map[string]string{"memory": "/sys/fs/cgroup/memory/s"}, false, true},
		{map[string]string{"cpuset": "/sys/fs/cgroup/cpuset/s"}, false, false},
	} {
		spec := testSpec(2)
		spec.Confine.V1 = c.v1
		p := New(Config{PMIxConf: step.PMIxConf{KeepTopology: c.keep}})
		p.rankBook, p.folder = newRankBook(p.ctx, launch.MPIJob{Spec: spec}, false), &folder{}
		var w writer
		p.setup(&w)
		r := reader{Reader: wire.Reader{B: w.B}}
		if version, flags := r.U32(), r.U32(); version != pmixhostProtocolVersion || (flags&setupTopology != 0) != c.want {
			t.Errorf("%v: version %d, flags %#x, want the topology shared: %v", c.v1, version, flags, c.want)
		}
	}
}
