package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestRootConformanceVisible: what the user sees of a plugin, by callback and
// by the way in which the plugin speaks (spank-behaviour §6). A cell of the
// table is where the text appears and what stands before it.
func TestRootConformanceVisible(t *testing.T) {
	n := startNode(t, site{})
	so := n.path("talk.so")
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/probe/talk.c", "-o", so)
	n.write(t, "plugstack.conf", "required "+so+"\n")
	heard := map[string][]string{}
	listen := func(command, where, text string) {
		for _, line := range n.said(text) {
			heard[command] = append(heard[command], where+": "+line)
		}
	}
	r := n.ctl(t, "run", "-n1", "true")
	listen("srun", "stdout", r.out)
	listen("srun", "stderr", r.err)
	r = n.ctl(t, "batch", "-W", "-n1", "-o", "out", n.userFile(t, "job.sh", "#!/bin/sh\n", 0o755))
	listen("sbatch", "stdout", r.out)
	listen("sbatch", "stderr", r.err)
	n.idle(t) // the host writes in there until its end
	b, err := os.ReadFile(filepath.Join(n.wd, "out"))
	must(t, err)
	listen("sbatch", "output", string(b))

	report := newReport(t, "visible")
	rows := readTSV(t, traceFile("visible"))
	for _, row := range rows[1:] {
		command, column := row[0], row[1]
		for i, want := range row[2:] {
			way := rows[0][i+2]
			actor, cb, _ := strings.Cut(column, ":")
			text := fmt.Sprintf("%d:%s %s", contextOf(actor), cb, way)
			got := absent
			for _, line := range heard[command] {
				if before, ok := strings.CutSuffix(line, text); ok {
					got = strings.TrimPrefix(got+"|"+before, absent+"|")
				}
			}
			report.fact(column, column, way, want, got)
		}
	}
	report.end(7 * 24)
}

// contextOf is the number of an actor's context.
func contextOf(actor string) int {
	for ctx, name := range actors {
		if name == actor {
			return ctx
		}
	}
	return 2 // a batch script's own step
}
