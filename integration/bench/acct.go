package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// acctOff is how far from a load's own word its accounting may be.
const acctOff = 0.02

// load is a known load: what a program of testdata/tasks is asked for.
type load struct {
	name    string
	program string // "load" or "burn"
	args    []string
	// of are the figures that are compared.
	of []comparison
}

// argv is the load's command line; dir has the programs, and out is for its word.
func (l *load) argv(dir, out string) []string {
	argv := append([]string{filepath.Join(dir, l.program)}, l.args...)
	if l.program == "burn" {
		return append(argv, out)
	}
	return append(argv, "report="+out)
}

// word reads what the load said of itself.
func (l *load) word(out string) (w word, err error) {
	if l.program != "burn" {
		return w, readJSON(out, &w)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		return w, fmt.Errorf("cannot read %q: %w", out, err)
	}
	if len(b) != 16 {
		return w, fmt.Errorf("cannot read %q: %d bytes instead of 16", out, len(b))
	}
	us := binary.NativeEndian.Uint64(b) + binary.NativeEndian.Uint64(b[8:])
	return word{CPU: float64(us) / 1e6}, nil
}

// comparison is one figure, as accounted and as the load itself reports it.
type comparison struct {
	what      string
	accounted func(*usageDoc) *float64
	reported  func(*word) float64
	// bare is wait4's figure for the same load without any step, nil where it
	// has none of the kind.
	bare func(*syscall.Rusage) float64
}

// word is what the load says of itself.
type word struct {
	CPU     float64 `json:"cpu_seconds"`
	Touched float64 `json:"touched"`
	Written float64 `json:"written"`
	Read    float64 `json:"read"`
}

// usageDoc is what is read of a step's record: of its one task, and of the step.
type usageDoc struct {
	CPU     *float64 `json:"cpu_seconds"`
	MaxRSS  *float64 `json:"max_rss_bytes"`
	Peak    *float64 `json:"peak_memory_bytes"`
	Read    *float64 `json:"read_bytes"`
	Written *float64 `json:"written_bytes"`

	Final      bool  `json:"final"`
	Samples    int   `json:"samples"`
	SamplingUS int64 `json:"sampling_us"`
}

var (
	ofCPU = comparison{
		"CPU seconds", func(u *usageDoc) *float64 { return u.CPU }, func(w *word) float64 { return w.CPU },
		func(ru *syscall.Rusage) float64 { return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9 },
	}
	ofRead    = comparison{"bytes read", func(u *usageDoc) *float64 { return u.Read }, func(w *word) float64 { return w.Read }, nil}
	ofWritten = comparison{"bytes written", func(u *usageDoc) *float64 { return u.Written }, func(w *word) float64 { return w.Written }, nil}
	ofRSS     = comparison{
		"MaxRSS of 64 MB", func(u *usageDoc) *float64 { return u.MaxRSS }, func(w *word) float64 { return w.Touched },
		func(ru *syscall.Rusage) float64 { return float64(ru.Maxrss) * 1024 },
	}
	ofPeak = comparison{"cgroup's peak of 64 MB", func(u *usageDoc) *float64 { return u.Peak }, func(w *word) float64 { return w.Touched }, nil}
)

// loads are short and long ones. The end of a process, which is in the kernel's
// figures and cannot be in its own, is 3 % of 5 ms for one with a libc and files:
// CPU time is compared with a program whose end is next to nothing. To touch 64 MB
// takes the kernel more than 5 ms: the short load of memory takes what it takes. What
// is written is less than what was touched before: page cache is in the cgroup's
// peak, too.
func loads(file string) []load {
	mb := func(n int) string { return strconv.Itoa(n << 20) }
	return []load{
		{"5 ms", "burn", []string{"5"}, []comparison{ofCPU}},
		{"5 ms", "load", []string{"cpu_ms=5", "write=" + mb(1), "read=" + mb(1), "file=" + file}, []comparison{ofRead, ofWritten}},
		{"short", "load", []string{"mem=" + mb(64)}, []comparison{ofRSS, ofPeak}},
		{"5 s", "load", []string{"cpu_ms=5000", "mem=" + mb(64), "write=" + mb(16), "read=" + mb(256), "file=" + file}, []comparison{ofCPU, ofRead, ofWritten, ofRSS, ofPeak}},
	}
}

// acctTable compares the accounting of known loads with their own word, and says
// what sampling costs.
func (b *bench) acctTable() error {
	for name, flags := range map[string][]string{
		"load": {"-static"},
		"burn": {"-static", "-nostdlib", "-ffreestanding", "-fno-stack-protector", "-fno-pie", "-no-pie"},
	} {
		src := b.source("..", "testdata", "tasks", name+".c")
		args := append([]string{"-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", filepath.Join(b.dir, name), src}, flags...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
		}
	}
	w := b.table("accounted / self-reported\tload\tjobacct_gather\tN\tmedian\tmin\tmax\twait4 of a bare process\twithin 2 %")
	for _, gather := range []string{"linux", "cgroup"} {
		if err := b.acctRows(w, gather); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return b.samplingRows()
}

func (b *bench) acctRows(w *tabwriter.Writer, gather string) error {
	n, err := b.start("acct-"+gather, 8, nil, "JobAcctGatherType=jobacct_gather/"+gather, "JobAcctGatherFrequency=0")
	if err != nil {
		return err
	}
	defer n.stop()
	// In memory: to give back a mapped page of a file on disk costs the load's end
	// as much as all of the rest of it, which is not in its own word.
	words, err := os.MkdirTemp("/dev/shm", "stepd-bench")
	if err != nil {
		return fmt.Errorf("cannot make a place for the loads' words: %w", err)
	}
	defer os.RemoveAll(words)
	for _, l := range loads(filepath.Join(b.dir, "file")) {
		runs := b.runsOf(20, 5, 10)
		if b.base != "" && l.name == "5 s" {
			runs = min(runs, 2)
		}
		ratios, bare := make([][]series, len(l.of)), make([]series, len(l.of))
		for i := range ratios {
			ratios[i] = make([]series, len(n))
		}
		for i := range runs {
			err := n.turns(i, func(k int, node *noded) error { return l.once(node, k, b.dir, words, ratios) })
			if err != nil {
				return err
			}
			// The bare process reports what its end costs: that shows in short ones.
			if b.base == "" && l.name != "5 s" {
				if err := l.bareOnce(b.dir, words, bare); err != nil {
					return err
				}
			}
		}
		for i, c := range l.of {
			if b.base != "" {
				what := fmt.Sprintf("accounted / self-reported %s, load of %s, jobacct_gather/%s", c.what, l.name, gather)
				b.beside(w, what, 1, ratios[i], func(ratio float64) string { return fmt.Sprintf("%.4f", ratio) })
				continue
			}
			acctRow(w, c.what, l.name, gather, ratios[i][0], bare[i])
		}
	}
	return nil
}

// once runs the load as a step of the noded with that number.
func (l *load) once(n *noded, k int, dir, words string, ratios [][]series) error {
	out := filepath.Join(words, "word")
	argv := n.run(append([]string{"-v", "-i", "none"}, l.argv(dir, out)...)...)
	said, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%q: %w: %s", argv, err, said)
	}
	own, err := l.word(out)
	if err != nil {
		return err
	}
	id, err := stepOf(string(said))
	if err != nil {
		return err
	}
	rec, err := n.ended(id)
	if err != nil {
		return err
	}
	for i, c := range l.of {
		if got := c.accounted(&rec.Tasks[0].Usage); got != nil {
			ratios[i][k] = append(ratios[i][k], *got/c.reported(&own))
		}
	}
	return nil
}

// bareOnce runs the load by itself.
func (l *load) bareOnce(dir, words string, bare []series) error {
	out := filepath.Join(words, "word")
	argv := l.argv(dir, out)
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%q: %w", argv, err)
	}
	own, err := l.word(out)
	if err != nil {
		return err
	}
	ru := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	for i, c := range l.of {
		if c.bare != nil {
			bare[i] = append(bare[i], c.bare(ru)/c.reported(&own))
		}
	}
	return nil
}

func acctRow(w *tabwriter.Writer, what, name, gather string, ratios, bare series) {
	if len(ratios) == 0 {
		fmt.Fprintf(w, "%s\t%s\t%s\t0\tnot measured: this layout of cgroups has no such figure\t\t\t\t\n", what, name, gather)
		return
	}
	slices.Sort(ratios)
	slices.Sort(bare)
	peer, verdict := "-", "yes"
	if len(bare) > 0 {
		peer = fmt.Sprintf("%.4f", bare[len(bare)/2])
	}
	median := ratios[len(ratios)/2]
	if median < 1-acctOff || median > 1+acctOff {
		verdict = "NO"
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%.4f\t%.4f\t%.4f\t%s\t%s\n", what, name, gather, len(ratios), median, ratios[0], ratios[len(ratios)-1], peer, verdict)
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(bytes.TrimRight(b, "\x00"), v)
	}
	if err != nil {
		return fmt.Errorf("cannot read %q: %w", path, err)
	}
	return nil
}

// stepOf reads "stepctl: job N step M", which -v says.
func stepOf(said string) (string, error) {
	f := strings.Fields(said)
	for i := range f {
		if f[i] == "job" && i+3 < len(f) && f[i+2] == "step" {
			return f[i+1] + "." + f[i+3], nil
		}
	}
	return "", fmt.Errorf("stepctl names no step: %q", said)
}

// stepRecord is what is read of STEP.
type stepRecord struct {
	State string `json:"state"`
	Tasks []struct {
		Usage usageDoc `json:"usage"`
	} `json:"tasks"`
	Usage    usageDoc `json:"usage"`
	StepdPID int      `json:"stepd_pid"`
}

func (n *noded) show(id string) (*stepRecord, error) {
	var doc struct {
		Step stepRecord `json:"step"`
	}
	out, err := exec.Command(filepath.Join(n.bin, "stepctl"), "--socket", n.socket, "show", "--json", id).Output()
	if err == nil {
		err = json.Unmarshal(out, &doc)
	}
	if err == nil && len(doc.Step.Tasks) == 0 {
		err = errors.New("it has no tasks")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot show step %s: %w", id, err)
	}
	return &doc.Step, nil
}

// ended shows a step when noded has its final record: the client gets the end
// from stepd itself.
func (n *noded) ended(id string) (*stepRecord, error) {
	for range 200 {
		rec, err := n.show(id)
		if err != nil || rec.Usage.Final {
			return rec, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return nil, fmt.Errorf("step %s has no final record", id)
}

// samplingRows is what a step of sleeping tasks costs its stepd, by the time
// between samples. All of the steps sleep at the same time.
func (b *bench) samplingRows() error {
	const tasks = 64
	every := []int{0, 30, 1}
	window := 32 * time.Second
	if b.quick {
		window = 5 * time.Second
	}
	n, err := b.start("sampling", len(every)*tasks, nil, "JobAcctGatherType=jobacct_gather/linux")
	if err != nil {
		return err
	}
	defer n.stop()
	var steps []sampled // for each time between samples one of each release
	for _, freq := range every {
		for _, node := range n {
			s, err := node.sample(tasks, (len(steps)+1)*tasks, freq)
			if err != nil {
				return err
			}
			defer s.client.Wait() // it ends with the noded's steps
			steps = append(steps, s)
		}
	}
	cpu, err := cpuWithin(window, steps)
	if err != nil {
		return err
	}
	n[0].cancelAll()
	w := b.table(fmt.Sprintf("sampling %d tasks for %v\tsamples\teach\tstepd's CPU time", tasks, window))
	for i, freq := range every {
		if b.base != "" {
			of := []series{cpu[2*i : 2*i+1], cpu[2*i+1 : 2*i+2]}
			b.beside(w, fmt.Sprintf("stepd's CPU time in %v, sampling every %d s", window, freq), tasks, of, ms)
			continue
		}
		rec, err := n[0].ended(steps[i].id)
		if err != nil {
			return err
		}
		each, u := "-", rec.Usage
		if u.Samples > 0 {
			each = fmt.Sprintf("%d µs", u.SamplingUS/int64(u.Samples))
		}
		fmt.Fprintf(w, "every %d s\t%d\t%s\t%s\n", freq, u.Samples, each, ms(cpu[i]))
	}
	return w.Flush()
}

// cpuWithin is the CPU time that each step's stepd takes within a time from now.
func cpuWithin(window time.Duration, steps []sampled) (series, error) {
	cpu := make(series, len(steps))
	look := func(sign float64) error {
		for i, s := range steps {
			ns, err := cpuOf(s.stepd)
			if err != nil {
				return err
			}
			cpu[i] += sign * float64(ns)
		}
		return nil
	}
	if err := look(-1); err != nil {
		return nil, err
	}
	time.Sleep(window)
	return cpu, look(1)
}

// sampled is a step of sleeping tasks.
type sampled struct {
	client *exec.Cmd
	id     string
	stepd  int
}

// sample starts one, with which so many tasks sleep on the machine.
func (n *noded) sample(tasks, all, freq int) (s sampled, err error) {
	others := n.running()
	argv := n.run("-n", fmt.Sprint(tasks), "--overcommit", "-i", "none", "--acctg-freq", fmt.Sprint(freq), "sleep", "60")
	s.client = exec.Command(argv[0], argv[1:]...)
	if err := s.client.Start(); err != nil {
		return s, err
	}
	if err := awaitSleepers(all); err != nil {
		return s, err
	}
	for id := range n.running() {
		if _, other := others[id]; other {
			continue
		}
		rec, err := n.show(id)
		if err != nil {
			return s, err
		}
		s.id, s.stepd = id, rec.StepdPID
		return s, nil
	}
	return s, fmt.Errorf("the step of %d tasks has ended", tasks)
}

// cpuOf is the CPU time of a process, in nanoseconds: its clock, as
// clock_getcpuclockid(3) names it.
func cpuOf(pid int) (int64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid)<<3|2, &ts); err != nil {
		return 0, fmt.Errorf("cannot read the CPU clock of process %d: %w", pid, err)
	}
	return ts.Nano(), nil
}
