package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// What 20 plugins may add to a step, and for each of its tasks.
const (
	stackFixedMax = 1.0  // ms
	stackTaskMax  = 20.0 // µs
)

// stackSizes are the stacks that are compared, each with a noded of its own.
// The empty one is given twice: how much the two differ is what the machine's
// noise makes of nothing. Beside another release there is none of that.
var stackSizes = []int{0, 0, 1, 5, 20}

var stackSpans = []span{
	toLast,
	{"stepd's exec to stepd's exit", func(l launch) uint64 { return l.daemonExit - l.daemon }},
	{"client's exec to client's exit", func(l launch) uint64 { return l.clientExit - l.client }},
}

// bareSpan is what the kernel alone takes for a process with as many files
// mapped to fork and exec, all tasks forked before the first execs: its exec to
// its exit, plugins loaded, all tasks ended.
var bareSpan = span{"bare loop, gate, plugins mapped", func(l launch) uint64 { return l.daemonExit - l.daemon }}

// stacks are the nodeds, and the bare loop beside them.
type stacks struct {
	b       *bench
	sizes   []int
	nodes   []nodes // of each size
	bare    string
	plugins []string
	rec     *recorder
	// added is what the largest stack adds, in ns: by span, one for each size.
	added map[string][]float64
}

// stacksTable is what plugins cost that do nothing: in the steps of a job that
// exists already, so that prolog and epilog are not among it.
func (b *bench) stacksTable() error {
	sizes := b.sizes([]size{{1, 60}, {64, 30}, {256, 15}}, []size{{1, 15}, {64, 8}, {256, 4}}, []size{{1, 60}, {64, 15}, {256, 7}})
	plugins, err := b.compilePlugins(slices.Max(stackSizes))
	if err != nil {
		return err
	}
	rec, err := b.events()
	if err != nil {
		return err
	}
	bare, err := b.bareLoop()
	if err != nil {
		return err
	}
	s := &stacks{b: b, sizes: stackSizes, bare: bare, plugins: plugins, rec: rec, added: make(map[string][]float64)}
	if b.base != "" {
		s.sizes = stackSizes[1:]
	}
	defer s.stop()
	if err := s.start(sizes[len(sizes)-1].n); err != nil {
		return err
	}
	w := b.table("empty plugins, all 12 hooks\tplugins\ttasks\tN\tmedian\tp90\tmore than without")
	for _, z := range sizes {
		if err := s.rows(w, z); err != nil {
			return err
		}
		w.Flush()
	}
	if b.base != "" {
		return nil
	}
	for _, sp := range stackSpans {
		s.tellAdded(sp.what, sizes, true)
	}
	s.tellAdded(bareSpan.what, sizes, false)
	return nil
}

// start runs nodeds for each stack, and a job in each.
func (s *stacks) start(tasks int) error {
	for i, plugins := range s.sizes {
		n, err := s.b.start(fmt.Sprintf("stack%d", i), tasks, func(dir string) error { return writeStack(dir, s.plugins[:plugins]) })
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, n)
		for _, node := range n {
			if err := node.hold(tasks); err != nil {
				return err
			}
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
func (b *bench) compilePlugins(n int) ([]string, error) {
	first := filepath.Join(b.dir, "empty01.so")
	src := b.source("empty", "empty.c")
	headers := filepath.Join(b.root, "spank", "host", "include")
	cc := exec.Command("gcc", "-O2", "-fPIC", "-shared", "-I", headers, "-o", first, src)
	if out, err := cc.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("cannot compile %q: %w: %s", src, err, out)
	}
	so, err := os.ReadFile(first)
	if err != nil {
		return nil, err
	}
	paths := []string{first}
	for i := 2; i <= n; i++ {
		path := filepath.Join(b.dir, fmt.Sprintf("empty%02d.so", i))
		if err := os.WriteFile(path, so, 0o755); err != nil {
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
	steps := make([][2][]launch, len(s.sizes))
	bare := make([][]launch, len(s.sizes))
	for round := range z.runs + 1 {
		for i := range s.sizes {
			i = (i + round) % len(s.sizes)
			err := s.nodes[i].turns(round, func(k int, node *noded) error {
				l, err := measure(s.rec, node.pid(), z.n, node.runInJob("-n", fmt.Sprint(z.n), "--overcommit", "/bin/true"))
				if round > 0 { // the first of each warms the caches
					steps[i][k] = append(steps[i][k], l)
				}
				return err
			})
			if err != nil {
				return err
			}
			if s.b.base != "" {
				continue
			}
			l, err := measureBare(s.rec, z.n, s.bare, append([]string{"-g", fmt.Sprint(z.n)}, s.plugins[:s.sizes[i]]...)...)
			if err != nil {
				return err
			}
			if round > 0 {
				bare[i] = append(bare[i], l)
			}
		}
	}
	if s.b.base != "" {
		s.baseRows(w, z, steps)
		return nil
	}
	own := make([][]launch, len(s.sizes))
	for i := range steps {
		own[i] = steps[i][0]
	}
	for _, sp := range stackSpans {
		s.spanRows(w, z, sp, own)
	}
	s.spanRows(w, z, bareSpan, bare)
	return nil
}

// baseRows are the rows of one size beside the other release.
func (s *stacks) baseRows(w io.Writer, z size, steps [][2][]launch) {
	for _, sp := range stackSpans {
		for i, plugins := range s.sizes {
			s.b.beside(w, fmt.Sprintf("%s, %d plugins", sp.what, plugins), z.n, []series{sp.series(steps[i][0]), sp.series(steps[i][1])}, ms)
		}
	}
}

func (s *stacks) spanRows(w io.Writer, z size, sp span, runs [][]launch) {
	for i, n := range s.sizes {
		own := sp.series(runs[i])
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s", sp.what, n, z.n, len(own), ms(own.at(0.5)), ms(own.at(0.9)))
		if i == 0 {
			fmt.Fprintln(w, "\t")
			continue
		}
		more := medianMore(runs[i], runs[0], sp)
		fmt.Fprintf(w, "\t%+.2f ms\n", more/1e6)
		if i == len(s.sizes)-1 {
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
		fmt.Printf("%s: %d plugins add %.2f ms a step plus %.1f µs a task (of %d)%s\n",
			what, slices.Max(stackSizes), fixed/1e6, task/1e3, sizes[i].n, verdict)
	}
}
