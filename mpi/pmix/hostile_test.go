package pmix

import (
	"os"
	"slices"
	"strings"
	"testing"

	"stepd/internal/wire"
)

// Who is in a fence is what a client says: a list of any length names each rank
// once, and costs no more than the list.
func TestManyProcs(t *testing.T) {
	p := unstarted(t)
	p.world.node = []int{0, 1, 0, 1}
	procs := []proc{{"slurm.pmix.9.9", 0}, {p.world.nspace, 3}, {p.world.nspace, 2}, {p.world.nspace, 3}, {p.world.nspace, 77}}
	if here, there := p.locals(procs), p.elsewhere(procs); !slices.Equal(here, []int{2}) || !slices.Equal(there, []int{3}) {
		t.Errorf("got %v and %v", here, there)
	}
	for range 1 << 18 {
		procs = append(procs, proc{p.world.nspace, rankWildcard})
	}
	if here, there := p.locals(procs), p.elsewhere(procs); !slices.Equal(here, []int{0, 2}) || !slices.Equal(there, []int{1, 3}) {
		t.Errorf("got %d and %d ranks", len(here), len(there))
	}
}

// A spawn of very many commands and directives is refused before they are read.
func TestHugeSpawn(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job = k.job(p.job.Spec)
	w := &writer{}
	w.proc(proc{p.world.nspace, 0})
	w.U32(0)       // directives
	w.U32(1 << 20) // commands
	w.B = append(w.B, make([]byte, appMin<<20)...)
	if got, err := (upcalls{p}).serveSpawn(t.Context(), &reader{Reader: wire.Reader{B: w.B}}); err != nil || got.status != stBadParam || len(k.log) != 1 {
		t.Errorf("got %+v, %v, log %q", got, err, k.log)
	}
}

// What ranks make stepd log ends.
func TestLogIsBounded(t *testing.T) {
	p := unstarted(t)
	k := &told{}
	p.job = k.job(p.job.Spec)
	for range 3 * logsMax {
		p.log("x")
	}
	if len(k.log) != logsMax || !strings.Contains(k.log[logsMax-1], "further messages") {
		t.Errorf("%d lines", len(k.log))
	}
	p.debug = true
	p.log("y")
	if len(k.log) != logsMax+1 {
		t.Error("PMIxDebug does not tell all")
	}
}

// The library's words are read to their end, however long a line is.
func TestListen(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	go func() {
		write.WriteString("one\n\n  two\n" + strings.Repeat("x", 3*lineMax) + "\nlast")
		write.Close()
	}()
	var said []string
	listen(read, func(line string) { said = append(said, line) })
	if len(said) != 6 || said[0] != "one" || said[1] != "two" || len(said[2]) != lineMax || said[5] != "last" {
		t.Errorf("%d lines: %.40q", len(said), said)
	}
}
