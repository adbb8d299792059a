package options

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"stepd/step"
)

// What means this node is accepted; what means others names the option, its value, and
// where such a step is run.
func TestNodes(t *testing.T) {
	for _, c := range []struct {
		name, options string
		ntasks        int    // 0: it is refused
		want          string // of the error
		env           string // SLURM_NNODES of a step in a job; "" is a step of its own
	}{
		{"nothing", "", 1, "", ""},
		{"one", "-N 1", 1, "", ""},
		{"from one to one", "-N 1-1", 1, "", ""},
		{"this one", "-w n1", 1, "", ""},
		{"this one, twice", "-w n[1,1] -N 1", 1, "", ""},
		{"not another", "-x n[2-3]", 1, "", ""},
		{"no-kill", "-k", 1, "", ""},
		{"no-kill with a word", "--no-kill=off", 1, "", ""},
		{"tasks of a node", "--ntasks-per-node 4", 4, "", ""},
		{"fewer tasks", "-n 2 --ntasks-per-node 4", 2, "", ""},
		{"in a job", "", 1, "", "1"},
		{"more tasks, in a job", "-n 5 --ntasks-per-node 4", 5, "", "1"},
		{"the option overrules the job", "-N 1", 1, "", "3"},
		{"two", "-N 2", 0, "cannot run on 2 nodes (-N 2): several nodes: use Slurm (docs/slurm.md)", ""},
		{"up to four", "--nodes=1-4", 0, "cannot run on 1 to 4 nodes (-N 1-4): several nodes: use Slurm (docs/slurm.md)", ""},
		{"no number", "-N x", 0, `cannot use -N "x": write a number of nodes, or MIN-MAX`, ""},
		{"none", "-N 0", 0, `cannot use -N "0": write`, ""},
		{"a range backwards", "-N 4-2", 0, `cannot use -N "4-2": write`, ""},
		{"another", "-w n2", 0, `cannot run on node "n2" (-w n2): this node is "n1"; several nodes: use Slurm (docs/slurm.md)`, ""},
		{"this one and another", "-w n[1-2]", 0, `cannot run on node "n2" (-w n[1-2])`, ""},
		{"no list", "-w n[1", 0, "--nodelist: ", ""},
		{"not this one", "-x n[1-2]", 0, `cannot run elsewhere than on node "n1" (-x n[1-2]): several nodes: use Slurm (docs/slurm.md)`, ""},
		{"too many tasks", "-n 5 --ntasks-per-node 4", 0, "cannot run 5 tasks with 4 on a node (--ntasks-per-node 4): several nodes: use Slurm", ""},
		{"the first one of a job", "-r 0", 1, "", "1"},
		{"the second one of a job", "-r 1", 0, "cannot begin at node 1 of the job (-r 1): several nodes: use Slurm (docs/slurm.md)", "1"},
		{"a file with this one", "-F testdata/this.nodes", 1, "", ""},
		{"a file with others", "-F testdata/others.nodes", 0, `cannot run on node "n2" (-w n1,n[2-3]): this node is "n1"`, ""},
		{"no such file", "-F testdata/no.nodes", 0, "--nodefile: cannot read the list of nodes: open testdata/no.nodes: no such file", ""},
		{"fewer than none", "--ntasks-per-node=-1", 0, "--ntasks-per-node=-1: want 1 to", ""},
		{"a job of two", "", 0, "cannot run on 2 nodes (SLURM_NNODES=2): several nodes: use Slurm (docs/slurm.md)", "2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("SLURM_NNODES", c.env)
			var o Run
			cmd := &cobra.Command{}
			o.Bind(cmd)
			if err := cmd.ParseFlags(strings.Fields(c.options)); err != nil {
				t.Fatal(err)
			}
			r := &step.Request{NTasks: o.NTasks}
			err := o.nodes.set(r, "n1", c.env != "")
			if c.ntasks > 0 && (err != nil || r.NTasks != c.ntasks || r.NNodes != 1) {
				t.Errorf("%+v, %v", r, err)
			}
			if c.ntasks == 0 && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
