package options

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"stepd/client/terminal"
	"stepd/srunopt"
	"stepd/step"
)

// Programs are the options of run about what the tasks run, and how long.
type Programs struct {
	Wait int // seconds after the first task's end until the others are ended; 0 is never

	time, signal           string
	multiProg              bool
	propagate              string
	taskProlog, taskEpilog string

	flags *pflag.FlagSet
}

// bindJob binds what run, alloc and batch have in common.
func (o *Programs) bindJob(f *pflag.FlagSet) {
	o.flags = f
	f.StringVarP(&o.time, "time", "t", "", "how long it may run: minutes, m:s, h:m:s or days-h[:m[:s]]")
	f.StringVar(&o.signal, "signal", "", "send a signal before that: [B:]SIGNAL[@SECONDS]; B: to the batch script alone")
}

// bindOutput binds what run and batch have in common beyond that.
func (o *Programs) bindOutput(f *pflag.FlagSet) {
	f.StringVar(&o.propagate, "propagate", "", "resource limits to pass on: ALL, NONE, or names as AS,NOFILE (default: the site's)")
	f.Lookup("propagate").NoOptDefVal = "ALL"
}

func (o *Programs) bindStep(f *pflag.FlagSet) {
	f.IntVarP(&o.Wait, "wait", "W", 0, "seconds after the first task's end until the others are ended; 0 is never")
	f.BoolVar(&o.multiProg, "multi-prog", false, "COMMAND is a file that says which task runs which program")
	f.StringVar(&o.taskProlog, "task-prolog", "", "a program to run before each task, which may change its environment")
	f.StringVar(&o.taskEpilog, "task-epilog", "", "a program to run after each task")
}

// set puts them into the request.
func (o *Programs) set(r *step.Request) error {
	for _, set := range []func(*step.Request) error{o.setTime, o.setPropagate, o.setScripts} {
		if err := set(r); err != nil {
			return err
		}
	}
	if o.Wait < 0 {
		return fmt.Errorf("--wait=%d: want a number of seconds, or 0", o.Wait)
	}
	if o.multiProg {
		return o.setApps(r)
	}
	return nil
}

func (o *Programs) setTime(r *step.Request) (err error) {
	if o.time != "" {
		if r.TimeLimitS, err = srunopt.ParseTime(o.time); err != nil {
			return fmt.Errorf("--time=%s: %w", o.time, err)
		}
	}
	if o.signal == "" {
		return nil
	}
	if r.Warn, err = srunopt.ParseWarning(o.signal, ParseSignal); err != nil {
		return fmt.Errorf("--signal=%s: %w", o.signal, err)
	}
	return nil
}

func (o *Programs) setPropagate(r *step.Request) error {
	if !o.flags.Changed("propagate") {
		return nil
	}
	_, err := o.limits(nil)
	r.OwnLimits = true
	return err
}

// limits keeps the SLURM_RLIMIT_* variables that --propagate names.
func (o *Programs) limits(env []string) ([]string, error) {
	var names []string
	switch text := strings.ToUpper(o.propagate); text {
	case "", "ALL":
		return env, nil
	case "NONE":
		return nil, nil
	default:
		for _, name := range strings.Split(text, ",") {
			name = strings.TrimPrefix(name, "RLIMIT_")
			if !slices.Contains(srunopt.ResourceLimits(), name) {
				return nil, fmt.Errorf("--propagate=%s: %q is no limit: write ALL, NONE, or some of %s", o.propagate, name, strings.Join(srunopt.ResourceLimits(), ","))
			}
			names = append(names, name)
		}
	}
	var kept []string
	for _, e := range env {
		name, _, _ := strings.Cut(strings.TrimPrefix(e, srunopt.LimitPrefix), "=")
		if slices.Contains(names, name) {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

func (o *Programs) setScripts(r *step.Request) error {
	for _, s := range []struct {
		option, value string
		to            *string
	}{{"--task-prolog", o.taskProlog, &r.TaskProlog}, {"--task-epilog", o.taskEpilog, &r.TaskEpilog}} {
		if s.value == "" {
			continue
		}
		// On the nodes it is run from nowhere in particular.
		path, err := filepath.Abs(s.value)
		if err != nil {
			return fmt.Errorf("%s=%s: cannot tell the working directory: %w", s.option, s.value, err)
		}
		*s.to = path
	}
	return nil
}

// setApps reads the file of --multi-prog, which stands where the command does.
func (o *Programs) setApps(r *step.Request) (err error) {
	if len(r.Argv) > 1 {
		return fmt.Errorf("--multi-prog: one file is wanted, whose lines have the arguments: %q is too much", r.Argv[1])
	}
	if r.Apps, err = readMultiProg(r.Argv[0], r.NTasks); err != nil {
		return fmt.Errorf("--multi-prog: %w", err)
	}
	r.Argv = step.Words(r.Apps[0].Argv)
	return nil
}

// envOption is a variable that stands for an option which is not given.
type envOption struct{ name, flag string }

// variables are the variables that stand for options of a verb (srun(1), salloc(1) and
// sbatch(1), input environment variables).
func (k Kind) variables() []envOption {
	switch k {
	case Allocation:
		return []envOption{{"SALLOC_TIMELIMIT", "time"}, {"SALLOC_SIGNAL", "signal"}, {"SALLOC_IMMEDIATE", "immediate"}}
	case BatchJob:
		return []envOption{
			{"SBATCH_TIMELIMIT", "time"}, {"SBATCH_SIGNAL", "signal"}, {"SBATCH_EXPORT", "export"}, {"SBATCH_OPEN_MODE", "open-mode"},
			{"SBATCH_IMMEDIATE", "immediate"},
		}
	}
	return []envOption{
		{"SLURM_TIMELIMIT", "time"}, {"SLURM_WAIT", "wait"}, {"SLURM_KILL_BAD_EXIT", "kill-on-bad-exit"},
		{"SLURM_EXPORT_ENV", "export"}, {"SLURM_OPEN_MODE", "open-mode"}, {"SLURM_LABELIO", "label"},
		{"SLURM_UNBUFFEREDIO", "unbuffered"}, {"SLURM_STDINMODE", "input"}, {"SLURM_STDOUTMODE", "output"},
		{"SLURM_STDERRMODE", "error"}, {"SLURM_TASK_PROLOG", "task-prolog"}, {"SLURM_TASK_EPILOG", "task-epilog"},
		{"SLURM_MULTI_PROG", "multi-prog"}, {"SLURM_OVERCOMMIT", "overcommit"}, {"SLURM_OVERLAP", "overlap"}, {"SLURM_IMMEDIATE", "immediate"},
	}
}

// FromEnv takes the options of a verb that its command line has not given from the
// environment. It refuses a variable of an option that stepctl no longer has.
func FromEnv(f *pflag.FlagSet, k Kind) error {
	prefixes := k.prefixes()
	prefix := prefixes[len(prefixes)-1]
	if err := refuseLeft(prefix); err != nil {
		return err
	}
	if err := bindingFromEnv(f, prefix); err != nil {
		return err
	}
	return optionsFromEnv(f, k.variables())
}

// optionsFromEnv takes the options that were not given, and that none excludes which
// was, from the environment: an outer step's often.
func optionsFromEnv(f *pflag.FlagSet, options []envOption) error {
	for _, e := range options {
		flag, value := f.Lookup(e.flag), os.Getenv(e.name)
		if flag == nil || flag.Changed || value == "" || overruled(f, e.flag) {
			continue
		}
		if flag.Value.Type() == "bool" {
			// srun: any number but 0, and any word, says yes.
			if n, err := strconv.Atoi(value); err == nil {
				value = strconv.FormatBool(n != 0)
			} else if _, err := strconv.ParseBool(value); err != nil {
				value = "true"
			}
		}
		// Set by name, so that it counts as given: it overrules #SBATCH lines.
		if err := f.Set(e.flag, value); err != nil {
			return fmt.Errorf("%s=%.80q: --%s overrules it: %w", e.name, value, e.flag, err)
		}
	}
	return nil
}

// errNoTime reports that a warning has nothing to come before.
var errNoTime = errors.New("--signal is of no use without --time: nothing ends the step")

// WarnUseless warns of options that come to nothing as they are.
func (o *Programs) WarnUseless(c *cobra.Command) {
	if o.signal != "" && o.time == "" && os.Getenv("SLURM_JOB_ID") == "" && !c.Flags().Changed("jobid") {
		terminal.Say("%s", errNoTime)
	}
}

// ParseSignal reads "TERM", "SIGTERM", "15".
func ParseSignal(s string) (int, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > 64 {
			return 0, fmt.Errorf("there is no signal %d", n)
		}
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return int(sig), nil
	}
	return 0, fmt.Errorf("there is no signal %q", s)
}

// multiProgMax bounds the file of --multi-prog, in bytes: a request holds no more.
const multiProgMax = 8 << 20

// readMultiProg reads the file of --multi-prog (srun(1)) for ntasks tasks.
func readMultiProg(path string, ntasks int) ([]step.App, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the tasks' programs: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, multiProgMax+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot read the tasks' programs: %w", err)
	case len(b) > multiProgMax:
		return nil, fmt.Errorf("%q is longer than %d bytes", path, multiProgMax)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, fmt.Errorf("%q holds a NUL byte: is it a program?", path)
	}
	return parseMultiProg(path, string(b), ntasks)
}

// progLine is one line of the file: a program and its arguments.
type progLine struct {
	number int
	words  []string
}

// parseMultiProg gives every task its program. Errors name file and line.
func parseMultiProg(path, text string, ntasks int) ([]step.App, error) {
	p := multiProg{path: path, of: make([]int, ntasks), offset: make([]int, ntasks), rest: -1}
	for number, line := range logicalLines(text) {
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		if err := p.add(number, line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, number, err)
		}
	}
	return p.apps()
}

// logicalLines are the lines with their numbers; a backslash at the end of one
// joins the next to it.
func logicalLines(text string) func(yield func(int, string) bool) {
	return func(yield func(int, string) bool) {
		number, first, joined := 0, 1, ""
		for line := range strings.Lines(text) {
			number++
			line = strings.TrimRight(line, "\r\n")
			if before, more := strings.CutSuffix(line, "\\"); more {
				joined += before
				continue
			}
			if !yield(first, joined+line) {
				return
			}
			first, joined = number+1, ""
		}
		if joined != "" {
			yield(first, joined)
		}
	}
}

// multiProg is the file as far as it was read.
type multiProg struct {
	path   string
	lines  []progLine
	of     []int // of a rank: its line, from 1; 0 is none yet
	offset []int // of a rank: its place in the line
	rest   int   // the line that has "*", -1 without one
}

func (p *multiProg) add(number int, line string) error {
	ranks, command := line, ""
	if at := strings.IndexAny(line, " \t"); at >= 0 {
		ranks, command = line[:at], line[at:]
	}
	words, err := programWords(command)
	if err != nil {
		return err
	}
	if len(words) == 0 || words[0] == "" {
		return fmt.Errorf("%q has no program behind it", ranks)
	}
	p.lines = append(p.lines, progLine{number: number, words: words})
	if ranks == "*" {
		if p.rest >= 0 {
			return fmt.Errorf("\"*\" is in line %d already", p.lines[p.rest].number)
		}
		p.rest = len(p.lines) - 1
		return nil
	}
	return p.name(ranks)
}

// name makes the last line the line of the ranks of a list: "0", "1-3", "0,2-5".
func (p *multiProg) name(list string) error {
	offset := 0
	for _, item := range strings.Split(list, ",") {
		from, to, ranged := strings.Cut(item, "-")
		first, err1 := strconv.ParseUint(from, 10, 31)
		last, err2 := first, error(nil)
		if ranged {
			last, err2 = strconv.ParseUint(to, 10, 31)
		}
		switch {
		case err1 != nil || err2 != nil:
			return fmt.Errorf("%q names no tasks: write ranks as in 0,2-5, or *", list)
		case last < first:
			return fmt.Errorf("%q: %d comes after %d", item, first, last)
		case last >= uint64(len(p.of)):
			return fmt.Errorf("there is no task %d: the step has %d", last, len(p.of))
		}
		for r := first; r <= last; r++ {
			if at := p.of[r]; at > 0 {
				return fmt.Errorf("task %d has its program in line %d already", r, p.lines[at-1].number)
			}
			p.of[r], p.offset[r] = len(p.lines), offset
			offset++
		}
	}
	return nil
}

// apps are the programs by rank: tasks of one line that follow each other are one.
func (p *multiProg) apps() ([]step.App, error) {
	var missing []int
	for r := range p.of {
		if p.of[r] > 0 {
			continue
		}
		if p.rest < 0 {
			missing = append(missing, r)
			continue
		}
		p.of[r], p.offset[r] = p.rest+1, r // as measured: of "*" the place is the rank
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("%s: no line is for task %s", p.path, step.FormatCPUList(missing))
	}
	var apps []step.App
	for r := range p.of {
		if r > 0 && p.of[r] == p.of[r-1] && p.offset[r] == p.offset[r-1]+1 {
			apps[len(apps)-1].NTasks++
			continue
		}
		apps = append(apps, step.App{NTasks: 1, Argv: step.Raw(p.lines[p.of[r]-1].words), Offset: new(p.offset[r])})
	}
	return apps, nil
}

// programWords splits a command as srun does: blanks part words, single quotes
// keep what is in them as it is, a backslash keeps the next character. Double
// quotes mean nothing. A % that was kept so is doubled: %t and %o are for the rest.
func programWords(s string) (words []string, err error) {
	var word strings.Builder
	in, quoted := false, false
	keep := func(c byte) {
		if c == '%' {
			word.WriteByte('%')
		}
		word.WriteByte(c)
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '\'':
			quoted, in = !quoted, true
		case quoted:
			keep(c)
		case c == '\\' && i+1 < len(s):
			i++
			keep(s[i])
			in = true
		case c == ' ' || c == '\t':
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		default:
			word.WriteByte(c)
			in = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("the quote ' is not closed")
	}
	if in {
		words = append(words, word.String())
	}
	return words, nil
}

// Tasks names tasks by their ranks: "task 3", "tasks 0-1,3".
func Tasks(ranks []int) string {
	word := "task "
	if len(ranks) > 1 {
		word = "tasks "
	}
	return word + step.FormatCPUList(ranks)
}
