package options

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
)

// perGPU are the options that count by GPU, or GPUs by task. On one node they are another way to write
// --ntasks, --cpus-per-task, --mem and --gres.
type perGPU struct {
	gpusPerTask, tresPerTask, memory string
	tasks, cpus                      int

	flags *pflag.FlagSet // to know which options were given
	gres  string         // what they ask for beside --gres and --gpus; setGPUs fills it in
}

func (o *perGPU) bind(f *pflag.FlagSet) {
	o.flags = f
	f.StringVar(&o.gpusPerTask, "gpus-per-task", "", "GPUs for each task: [TYPE:]COUNT; all tasks see all of them")
	f.IntVar(&o.tasks, "ntasks-per-gpu", 0, "tasks for each GPU: without --ntasks the number of tasks, without GPUs theirs")
	f.IntVar(&o.cpus, "cpus-per-gpu", 0, "CPUs for each GPU")
	f.StringVar(&o.memory, "mem-per-gpu", "", "memory for each GPU, as --mem")
	f.StringVar(&o.tresPerTask, "tres-per-task", "", "for each task: cpu=COUNT,gres/NAME[:TYPE]=COUNT")
}

// implied is the option that was given by which Slurm would bind tasks to GPUs, "" without.
func (o *Resources) implied() string {
	for _, name := range []string{"gpus-per-task", "ntasks-per-gpu"} {
		if f := o.perGPU.flags; wasGiven(f, name) && !wasGiven(f, "gpu-bind") && !wasGiven(f, "tres-bind") {
			return name
		}
	}
	return ""
}

// setGPUs puts into the request what is counted by GPU, and the GPUs that are counted by task.
func (o *Run) setGPUs(r *step.Request) error {
	g := &o.resources.perGPU
	if err := g.setTres(r); err != nil {
		return err
	}
	_, all, err := countGPUs("--gpus", o.resources.gpus, 1)
	if err != nil {
		return err
	}
	free := !g.flags.Changed("ntasks") && r.Job == nil // the number of tasks may follow from the GPUs'
	if g.gpusPerTask != "" {
		_, per, err := countGPUs("--gpus-per-task", g.gpusPerTask, 1)
		switch {
		case err != nil:
			return err
		case all > 0 && free && all%per == 0:
			r.NTasks = all / per
		case all > 0 && all != per*r.NTasks:
			return fmt.Errorf("--gpus-per-task=%s: %d tasks have %d GPUs, and --gpus=%s asks for %d", g.gpusPerTask, r.NTasks, per*r.NTasks, o.resources.gpus, all)
		case all == 0:
			var list string
			list, all, _ = countGPUs("--gpus-per-task", g.gpusPerTask, r.NTasks) // it was read above
			g.add(list)
		}
	}
	if g.tasks < 0 || g.cpus < 0 {
		return fmt.Errorf("--ntasks-per-gpu and --cpus-per-gpu: want a number above 0")
	}
	if g.tasks > 0 {
		switch {
		case all > 0 && free:
			r.NTasks = all * g.tasks
		case all > 0 && r.NTasks > all*g.tasks:
			return fmt.Errorf("--ntasks-per-gpu=%d: %d GPUs have no room for %d tasks", g.tasks, all, r.NTasks)
		case all == 0:
			all = (r.NTasks + g.tasks - 1) / g.tasks
			g.add(fmt.Sprintf("gpu:%d", all))
		}
	}
	if option := o.resources.implied(); option != "" && r.NTasks > 1 && !o.Quiet {
		terminal.Say("--%s binds no task to a GPU: each task sees all GPUs of its step", option)
	}
	for _, option := range []string{"cpus-per-gpu", "mem-per-gpu"} {
		if wasGiven(g.flags, option) && all == 0 {
			return fmt.Errorf("--%s is of no use without --gpus, --gpus-per-task or --ntasks-per-gpu", option)
		}
	}
	if g.cpus > 0 {
		r.CPUsPerTask = (all*g.cpus + r.NTasks - 1) / r.NTasks
	}
	if g.memory == "" {
		return nil
	}
	mb, err := srunopt.ParseMemory(g.memory)
	if err != nil {
		return fmt.Errorf("--mem-per-gpu: %w", err)
	}
	mb *= uint64(all)
	r.Mem = &mb
	return nil
}

// add asks for more generic resources.
func (o *perGPU) add(list string) { o.gres = strings.TrimPrefix(o.gres+","+list, ",") }

// countGPUs reads [TYPE:]COUNT,... and returns how many GPUs that is, and the list times n as one of
// generic resources.
func countGPUs(option, text string, n int) (list string, all int, err error) {
	if text == "" {
		return "", 0, nil
	}
	var items []string
	for item := range strings.SplitSeq(text, ",") {
		kind, number, ok := strings.Cut(item, ":")
		if !ok {
			kind, number = "", item
		}
		count, err := strconv.ParseUint(number, 10, 16)
		if err != nil || count == 0 {
			return "", 0, fmt.Errorf("%s=%s: want [TYPE:]COUNT", option, text)
		}
		all += int(count) * n
		items = append(items, strings.TrimSuffix("gpu:"+kind, ":")+":"+strconv.FormatUint(count*uint64(n), 10))
	}
	return strings.Join(items, ","), all, nil
}

// setTres reads --tres-per-task.
func (o *perGPU) setTres(r *step.Request) error {
	o.gres = ""
	if o.tresPerTask == "" {
		return nil
	}
	for entry := range strings.SplitSeq(o.tresPerTask, ",") {
		name, number, _ := strings.Cut(entry, "=")
		count, err := strconv.ParseUint(number, 10, 16)
		if err != nil || count == 0 {
			return fmt.Errorf("--tres-per-task=%s: %q: want NAME=COUNT", o.tresPerTask, entry)
		}
		gres, ok := strings.CutPrefix(name, "gres/")
		switch {
		case name == "cpu":
			r.CPUsPerTask = int(count)
		case ok:
			o.add(fmt.Sprintf("%s:%d", gres, count*uint64(r.NTasks)))
		default:
			return fmt.Errorf("--tres-per-task=%s: %q: noded gives tasks cpu and gres/NAME alone", o.tresPerTask, name)
		}
	}
	return nil
}
