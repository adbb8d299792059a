package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// phase is a part of a step's life, in ns.
type phase struct {
	name string
	ns   float64
}

// phasesTable is the way of a step of one task that ends at once, from its client's fork to its
// client's end, phase after phase: what timeline shows of it, the client's parts before and
// after, and what lies between two phases with the one that it follows.
func (b *bench) phasesTable() error {
	n, err := b.start("phases", 8, nil)
	if err != nil {
		return err
	}
	defer n.stop()
	var names []string // in order
	of := make([]map[string]series, len(n))
	for k := range of {
		of[k] = map[string]series{}
	}
	for i := range b.runsOf(200, 20, 200) + 1 {
		err := n.turns(i, func(k int, node *noded) error {
			phases, err := node.phases("true")
			if err != nil || i == 0 { // the first warms the caches
				return err
			}
			for _, p := range phases {
				if k == 0 && !slices.Contains(names, p.name) {
					names = append(names, p.name)
				}
				of[k][p.name] = append(of[k][p.name], p.ns)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	w := b.table("a step, phase by phase\ttasks\tN\tmedian\tp90")
	for _, name := range names {
		var row []series
		for k := range of {
			row = append(row, of[k][name])
		}
		b.row(w, name, 1, row, ms)
	}
	return w.Flush()
}

// phases runs a step and returns its phases, and the sum of them last.
func (n *noded) phases(argv ...string) ([]phase, error) {
	line := n.run(append([]string{"-v"}, argv...)...)
	cmd := exec.Command(line[0], line[1:]...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begin := time.Now()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%q: %w: %s", line, err, stderr.String())
	}
	end := time.Now()
	var job, step int
	_, id, _ := strings.Cut(stderr.String(), "stepctl: job ")
	if _, err := fmt.Sscanf(id, "%d step %d", &job, &step); err != nil {
		return nil, fmt.Errorf("%q has not named its step: %q", line, stderr.String())
	}
	name := fmt.Sprintf("%d.%d", job, step)
	var request struct {
		Time time.Time `json:"time"`
	}
	if err := n.ask(&request, "events", name); err != nil { // the first event
		return nil, err
	}
	var doc struct {
		Timeline struct {
			Sections []struct {
				Spans []struct {
					Kind    string `json:"kind"`
					Name    string `json:"name"`
					BeginUS int    `json:"begin_us"`
					EndUS   int    `json:"end_us"`
				} `json:"spans"`
			} `json:"sections"`
		} `json:"timeline"`
	}
	if err := n.ask(&doc, "timeline", "--json", name); err != nil {
		return nil, err
	}
	list := []phase{{"client, until noded has its request", float64(request.Time.Sub(begin))}}
	at := 0
	for _, section := range doc.Timeline.Sections {
		for _, s := range section.Spans {
			if s.Kind == "hook" {
				continue
			}
			list[len(list)-1].ns += float64(max(0, s.BeginUS-at)) * 1e3
			list = append(list, phase{s.Name, float64(s.EndUS-max(s.BeginUS, min(at, s.EndUS))) * 1e3})
			at = max(at, s.EndUS)
		}
	}
	rest := end.Sub(request.Time) - time.Duration(at)*time.Microsecond
	return append(list, phase{"client, after the step's end", float64(rest)}, phase{"all", float64(end.Sub(begin))}), nil
}

// ask decodes the first document that a verb of stepctl prints.
func (n *noded) ask(v any, args ...string) error {
	out, err := exec.Command(filepath.Join(n.bin, "stepctl"), append([]string{"--socket", n.socket}, args...)...).Output()
	if err != nil {
		return fmt.Errorf("%q: %w", args, err)
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(v); err != nil {
		return fmt.Errorf("%q has printed something else: %w", args, err)
	}
	return nil
}
