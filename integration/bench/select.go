package main

import (
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
)

// decision is a line of go test's: a name, how often it was run, and the time of one.
var decision = regexp.MustCompile(`(?m)^Benchmark(Decide|WillRun)\S*\s+(\d+)\s+(\d+) ns/op`)

// selectTable measures how long noded takes to choose what a job gets, by the benchmarks of the
// package that does it: through the socket the rest of a request takes longer. Another release's is
// not measured.
func (b *bench) selectTable() error {
	if b.base != "" {
		return nil
	}
	w := b.table("decision on 256 cores with 200 jobs\tN\tmean")
	defer w.Flush()
	what := map[string]string{
		"Decide":  "a job of 8 cores and a GPU: choice, begin and end",
		"WillRun": "when 200 cores are free at the latest, and which jobs have to end",
	}
	cmd := exec.Command("go", "test", "-run", "^$", "-bench", "^Benchmark(Decide|WillRun)$", "./node/selection")
	cmd.Dir = b.root
	out, err := cmd.CombinedOutput()
	rows := decision.FindAllStringSubmatch(string(out), -1)
	if err != nil || len(rows) != len(what) {
		fmt.Fprintf(w, "decision\tnot measured: %v: %s\n", err, out)
		return nil
	}
	for _, row := range rows {
		ns, err := strconv.ParseFloat(row[3], 64)
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%s\t%.3f ms\n", what[row[1]], row[2], ns/1e6)
	}
	return nil
}
