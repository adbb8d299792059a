package affinity

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"stepd/srunopt"
	"stepd/step"
)

// sysTree reads testdata/sys/NAME.txt: a file of /sys and its content on each line.
func sysTree(t testing.TB, name string) fstest.MapFS {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "sys", name+".txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tree := fstest.MapFS{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if line := lines.Text(); !strings.HasPrefix(line, "#") {
			file, content, _ := strings.Cut(line, " ")
			tree[file] = &fstest.MapFile{Data: []byte(content + "\n")}
		}
	}
	return tree
}

// machine is the topology of the CPUs in the list on a machine of testdata.
func machine(t testing.TB, name, cpus string) *Topology {
	t.Helper()
	list, err := step.ParseCPUList(cpus)
	if err != nil {
		t.Fatal(err)
	}
	topo, err := ReadTopology(sysTree(t, name), list)
	if err != nil {
		t.Fatal(err)
	}
	return topo
}

// input reads srun's options.
func input(options string) (in Input, err error) {
	in.NTasks, in.CPUsPerTask = 1, 1
	words := strings.Fields(options)
	number := func(s string) int {
		n, nerr := strconv.Atoi(s)
		err = errors.Join(err, nerr)
		return n
	}
	for i := 0; i < len(words); i++ {
		w := words[i]
		name, value, _ := strings.Cut(w, "=")
		var perr error
		switch {
		case w == "-m":
			i++
			in.Binding.Distribution, perr = srunopt.ParseDistribution(words[i], "")
		case w == "-O":
			in.Overcommit = true
		case strings.HasPrefix(w, "-n"):
			in.NTasks = number(w[2:])
		case strings.HasPrefix(w, "-c"):
			in.CPUsPerTask = number(w[2:])
		case name == "--cpu-bind":
			in.Binding.CPU, perr = srunopt.ParseCPUBind(value)
		case name == "--mem-bind":
			in.Binding.Mem, perr = srunopt.ParseMemBind(value)
		case name == "--hint":
			in.Binding.Hint, perr = srunopt.ParseHint(value)
		case name == "--threads-per-core":
			in.Binding.ThreadsPerCore = number(value)
		case name == "--ntasks-per-core":
			in.Binding.NTasksPerCore = number(value)
		case name == "--ntasks-per-socket":
			in.Binding.NTasksPerSocket = number(value)
		default:
			perr = errors.New("unknown option " + w)
		}
		err = errors.Join(err, perr)
	}
	return in, err
}

// plan plans a step of the options.
func plan(t testing.TB, topo *Topology, options string) (*Plan, error) {
	t.Helper()
	in, err := input(options)
	if err != nil {
		t.Fatalf("%s: %v", options, err)
	}
	in.Topology, in.OwnJob = topo, true
	return MakePlan(in)
}

// places is the CPUs of each rank, parted by blanks.
func (p *Plan) places() string {
	var out []string
	for _, s := range p.CPUs {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}
