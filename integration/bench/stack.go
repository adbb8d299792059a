package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// What 20 plugins may add to a step, and for each of its tasks.
const (
	stackFixedMax = 1.0  // ms
	stackTaskMax  = 20.0 // µs
)

// stackSizes are the stacks that are compared, each with a noded of its own.
// The empty one is there twice: how much the two differ is what the machine's
// noise makes of nothing.
var stackSizes = []int{0, 0, 1, 5, 20}

// span is a part of a step's life whose length is compared.
type span struct {
	what string
	of   func(launch) uint64
}

var stackSpans = []span{
	{"stepd's exec to last task's exec", func(l launch) uint64 { return l.lastExec - l.daemon }},
	{"stepd's exec to stepd's exit", func(l launch) uint64 { return l.daemonExit - l.daemon }},
	{"client's exec to client's exit", func(l launch) uint64 { return l.clientExit - l.client }},
}

// bareSpan is what the kernel alone takes for a process with as many files
// mapped to fork and exec, all tasks forked before the first execs: its exec to
// its exit, plugins loaded, all tasks ended.
var bareSpan = span{"bare loop, gate, plugins mapped", func(l launch) uint64 { return l.daemonExit - l.daemon }}

// stacks are the nodeds, and the bare loop beside them.
type stacks struct {
	nodes   []*noded
	bare    string
	plugins []string
	rec     *recorder
	out     io.Writer
	// added is what the largest stack adds, in ns: by span, one for each size.
	added map[string][]float64
}

// runStacks is what plugins cost that do nothing: in the steps of a job that is
// there already, so that prolog and epilog are not among it.
func runStacks(bin, dir, bare string, rec *recorder, quick bool) error {
	sizes := []size{{1, 60}, {64, 30}, {256, 15}}
	if quick {
		sizes = []size{{1, 15}, {64, 8}, {256, 4}}
	}
	plugins, err := compilePlugins(bin, dir, slices.Max(stackSizes))
	if err != nil {
		return err
	}
	s := &stacks{bare: bare, plugins: plugins, rec: rec, out: os.Stdout, added: make(map[string][]float64)}
	defer s.stop()
	if err := s.start(bin, dir, sizes[len(sizes)-1].n); err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.out, 2, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nempty plugins, all 12 hooks\tplugins\ttasks\tN\tmedian\tp90\tmore than without")
	for _, z := range sizes {
		if err := s.rows(w, z); err != nil {
			return err
		}
		w.Flush()
	}
	for _, sp := range stackSpans {
		s.tellAdded(sp.what, sizes, true)
	}
	s.tellAdded(bareSpan.what, sizes, false)
	return nil
}

// start runs a noded for each stack, and a job in each.
func (s *stacks) start(bin, dir string, tasks int) error {
	for i, n := range stackSizes {
		d := filepath.Join(dir, fmt.Sprintf("stack%d", i))
		if err := writeStack(d, s.plugins[:n]); err != nil {
			return err
		}
		node, err := startNoded(bin, d, tasks)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, node)
		if err := node.hold(tasks); err != nil {
			return err
		}
	}
	return nil
}

func (s *stacks) stop() {
	for _, n := range s.nodes {
		n.stop()
	}
}

// compilePlugins makes n files of the plugin: a stack that names one file
// twenty times would load it once.
func compilePlugins(bin, dir string, n int) ([]string, error) {
	root := filepath.Dir(bin)
	first := filepath.Join(dir, "empty01.so")
	src := filepath.Join(root, "integration", "bench", "empty", "empty.c")
	cc := exec.Command("gcc", "-O2", "-fPIC", "-shared", "-I", filepath.Join(root, "spank", "host", "include"), "-o", first, src)
	if out, err := cc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	b, err := os.ReadFile(first)
	if err != nil {
		return nil, err
	}
	paths := []string{first}
	for i := 2; i <= n; i++ {
		path := filepath.Join(dir, fmt.Sprintf("empty%02d.so", i))
		if err := os.WriteFile(path, b, 0o755); err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

func writeStack(dir string, plugins []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var text strings.Builder
	for _, p := range plugins {
		fmt.Fprintf(&text, "required %s\n", p)
	}
	return os.WriteFile(filepath.Join(dir, "plugstack.conf"), []byte(text.String()), 0o644)
}

// rows measures steps of one size. In each round every stack has its turn, and
// another one begins: what the machine does meanwhile hits them all.
func (s *stacks) rows(w io.Writer, z size) error {
	steps := make([][]launch, len(stackSizes))
	bare := make([][]launch, len(stackSizes))
	for round := range z.runs + 1 {
		for i := range stackSizes {
			i = (i + round) % len(stackSizes)
			l, err := measure(s.rec, s.nodes[i].pid(), z.n, s.nodes[i].runInJob("-n", fmt.Sprint(z.n), "--overcommit", "/bin/true"))
			if err != nil {
				return err
			}
			b, err := measureBare(s.rec, z.n, s.bare, append([]string{"-g", fmt.Sprint(z.n)}, s.plugins[:stackSizes[i]]...)...)
			if err != nil {
				return err
			}
			if round > 0 { // the first of each warms the caches
				steps[i], bare[i] = append(steps[i], l), append(bare[i], b)
			}
		}
	}
	for _, sp := range stackSpans {
		s.spanRows(w, z, sp, steps)
	}
	s.spanRows(w, z, bareSpan, bare)
	return nil
}

func (s *stacks) spanRows(w io.Writer, z size, sp span, runs [][]launch) {
	for i, n := range stackSizes {
		var own series
		for _, l := range runs[i] {
			own = append(own, sp.of(l))
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s", sp.what, n, z.n, len(own), ms(own.at(0.5)), ms(own.at(0.9)))
		if i == 0 {
			fmt.Fprintln(w, "\t")
			continue
		}
		more := medianMore(runs[i], runs[0], sp)
		fmt.Fprintf(w, "\t%+.2f ms\n", more/1e6)
		if i == len(stackSizes)-1 {
			s.added[sp.what] = append(s.added[sp.what], more)
		}
	}
}

// medianMore is the median of the rounds' differences, in ns.
func medianMore(runs, without []launch, sp span) float64 {
	var d []float64
	for i := range runs {
		d = append(d, float64(sp.of(runs[i]))-float64(sp.of(without[i])))
	}
	slices.Sort(d)
	if n := len(d); n%2 == 0 {
		return (d[n/2-1] + d[n/2]) / 2
	}
	return d[len(d)/2]
}

// tellAdded parts what the largest stack adds into what a step pays and what
// each of its tasks does: the former from steps of one task, the latter from
// each larger size.
func (s *stacks) tellAdded(what string, sizes []size, judged bool) {
	added := s.added[what]
	for i := 1; i < len(sizes); i++ {
		n0, n := float64(sizes[0].n), float64(sizes[i].n)
		task := (added[i] - added[0]) / (n - n0)
		fixed := added[0] - n0*task
		verdict := ""
		if judged {
			verdict = fmt.Sprintf(": within %.0f ms and %.0f µs", stackFixedMax, stackTaskMax)
			if fixed/1e6 > stackFixedMax || task/1e3 > stackTaskMax {
				verdict = fmt.Sprintf(": more than %.0f ms and %.0f µs", stackFixedMax, stackTaskMax)
			}
		}
		fmt.Fprintf(s.out, "%s: %d plugins add %.2f ms a step plus %.1f µs a task (of %d)%s\n",
			what, slices.Max(stackSizes), fixed/1e6, task/1e3, sizes[i].n, verdict)
	}
}
