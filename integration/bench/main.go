// Command bench prints the benchmark table of the project: what a step costs,
// beside a bare fork+exec loop in the same run, and beside slurmstepd where
// Debian's slurmd is installed; or, with -base, beside the programs of another
// release. The times are the kernel's own (process events), so that nothing is
// added to what is measured. No number is stored: what was not measured says why.
//
// The compared programs run in turn, so that a machine that slows down slows all
// of them. They are known by their command lines alone: another release's are
// measured as ours are. Begin reading at tables.
package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
)

// tables are the parts of the benchmark, in their order. Those that need the
// kernel's process events come first: nothing reads them later.
var tables = []struct {
	name string
	run  func(*bench) error
}{
	{"client", (*bench).clientTable},
	{"phases", (*bench).phasesTable},
	{"steps", (*bench).stepsTable},
	{"memory", (*bench).memoryTable},
	{"slurmd", slurmdTable},
	{"kill", (*bench).killTable},
	{"stacks", (*bench).stacksTable},
	{"events", (*bench).eventsTable},
	{"rate", (*bench).rateTable},
	{"mpi", (*bench).mpiTable},
	{"streams", (*bench).streamsTable},
	{"many", (*bench).manyTable},
	{"acct", (*bench).acctTable},
	{"select", (*bench).selectTable},
}

func main() {
	b := new(bench)
	var names []string
	for _, t := range tables {
		names = append(names, t.name)
	}
	flag.StringVar(&b.bin, "bin", "bin", "the `folder` of the built programs")
	flag.StringVar(&b.base, "base", "", "the `folder` of another release's programs: they are measured in turn with ours, and no other peer is")
	flag.BoolVar(&b.quick, "quick", false, "few runs, for a look")
	flag.IntVar(&b.runs, "runs", 0, "how often the first row of a table is measured, the others in proportion; 0: as is usual")
	flag.StringVar(&b.only, "only", "", "of the rows of streams those that have this `text`")
	run := flag.String("run", strings.Join(names, ","), "the `tables`, with commas")
	flag.Parse()
	if err := b.all(strings.Split(*run, ","), names); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// all prints the tables with these names, in their own order.
func (b *bench) all(wanted, names []string) error {
	for _, name := range wanted {
		if !slices.Contains(names, name) {
			return fmt.Errorf("cannot run table %q: want some of %s", name, strings.Join(names, ","))
		}
	}
	dir, err := os.MkdirTemp("", "stepd-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // another user runs programs in there
		return err
	}
	b.dir = dir
	if err := b.install(); err != nil {
		return err
	}
	defer func() {
		if b.peer != nil {
			b.peer.stop()
		}
	}()
	for _, t := range tables {
		if !slices.Contains(wanted, t.name) {
			continue
		}
		if err := t.run(b); err != nil {
			return fmt.Errorf("table %q: %w", t.name, err)
		}
	}
	b.verdict()
	return nil
}
