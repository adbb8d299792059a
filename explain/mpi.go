package explain

import (
	"fmt"
	"slices"
	"strings"

	"stepd/step"
)

// MPI is how far the ranks of a step have come, as its MPI plugin heard it.
type MPI struct {
	Type string `json:"type"`
	// Groups are ranks that have come equally far, those behind first.
	Groups []MPIGroup `json:"groups"`
	// Missing are the ranks that others wait for, the first of them.
	Missing []MissingRank `json:"missing"`
	// MissingTotal counts them all.
	MissingTotal int `json:"missing_total"`
	// Text has it in lines.
	Text []string `json:"text"`
}

// MPIGroup are ranks that have come equally far.
type MPIGroup struct {
	Ranks string `json:"ranks"`
	// MPI is null of ranks that the plugin has heard nothing of.
	MPI *step.MPIProgress `json:"mpi"`
	// WaitsFor are the ranks that these wait for, as a list; "" where that is not known.
	WaitsFor string `json:"waits_for,omitempty"`
}

// MissingRank is a rank that others wait for.
type MissingRank struct {
	Rank int `json:"rank"`
	// MPI is how far it has come, null where it is unknown.
	MPI *step.MPIProgress `json:"mpi"`
	// Status is its end, null while it lives; Doing is what its process does, where
	// that is known.
	Status *step.ExitStatus `json:"status"`
	Doing  *step.Doing      `json:"doing"`
	Text   string           `json:"text"`
}

// missingMax bounds the ranks that are described one by one.
const missingMax = 16

// mpi reports how far the ranks have come. A step that ended well, one without an MPI
// plugin, and one whose ranks never spoke and do not miss it, have nothing to report.
func (e *explainer) mpi() *MPI {
	r := e.rec
	heard := slices.ContainsFunc(r.Tasks, func(t step.Task) bool { return t.MPI != nil })
	if r.MPI == "" || r.MPI == "none" {
		return nil
	}
	m := &MPI{Type: r.MPI, Groups: []MPIGroup{}, Missing: []MissingRank{}, Text: []string{}}
	if !heard {
		if text := e.silent(); text != "" {
			m.Text = append(m.Text, text)
			return m
		}
		return nil
	}
	groups := step.GroupProgress(r.Tasks)
	missing := e.missing(groups)
	m.MissingTotal = len(missing)
	e.tellGroups(m, groups, missing)
	e.tellMissing(m, missing)
	if text := e.elsewhere(missing); text != "" {
		m.Text = append(m.Text, text)
	}
	return m
}

// silent is what is to be said of several tasks none of which speaks, or has spoken, to the MPI
// plugin: an MPI program's library speaks to another one, and each of them believes to be alone.
func (e *explainer) silent() string {
	r := e.rec
	if !r.MPISilent && (r.State != step.Running || len(r.Tasks) < 2 || r.ID.Step == step.BatchStep) {
		return ""
	}
	other := "pmi2"
	if r.MPI == other {
		other = "pmix"
	}
	if r.MPISilent {
		return fmt.Sprintf("no task has spoken PMI: of an MPI program these were %d singletons, and its library may want --mpi=%s", r.NTasks, other)
	}
	return fmt.Sprintf("no task has spoken PMI yet: of an MPI program these are %d singletons if it goes on so, and its library may want --mpi=%s", len(r.Tasks), other)
}

// elsewhere says where to look at ranks of which none waits for another in PMI: a deadlock in
// MPI's own messages is not heard here.
func (e *explainer) elsewhere(missing map[int]bool) string {
	if e.rec.State != step.Running || len(missing) > 0 {
		return ""
	}
	for i := range e.rec.Tasks {
		t := &e.rec.Tasks[i]
		if t.State != step.TaskRunning || t.PID == nil || t.MPI == nil || t.MPI.Phase != step.PhaseInitialized || t.MPI.Waits() {
			return ""
		}
	}
	first := e.rec.Tasks[0]
	return fmt.Sprintf("none waits for another here: if they stand still, it is in MPI's own calls; `stepctl top %s` shows which compute, `gdb -p %d` (bt) where rank %d is",
		e.rec.ID.Name(), *first.PID, first.Rank)
}

// missing are the ranks that others wait for.
func (e *explainer) missing(groups []step.ProgressGroup) map[int]bool {
	missing := make(map[int]bool)
	for i := range e.rec.Tasks {
		if t := &e.rec.Tasks[i]; e.isBehind(t) {
			missing[t.Rank] = true
		}
	}
	for _, g := range groups {
		for _, rank := range e.waitedFor(g.MPI) {
			missing[rank] = true
		}
	}
	return missing
}

// tellGroups fills in how far the ranks have come, with a line of each group.
// Groups that wait come first; a group whose ranks are each described below needs no
// line.
func (e *explainer) tellGroups(m *MPI, groups []step.ProgressGroup, missing map[int]bool) {
	var waiting, others []string
	for _, g := range groups {
		out := MPIGroup{Ranks: step.FormatCPUList(g.Ranks), MPI: g.MPI, WaitsFor: step.FormatCPUList(e.waitedFor(g.MPI))}
		present := slices.ContainsFunc(g.Ranks, func(rank int) bool { return !missing[rank] })
		m.Groups = append(m.Groups, out)
		switch {
		case !present && len(missing) <= missingMax:
		case g.MPI.Waits():
			waiting = append(waiting, groupText(&out, g))
		default:
			others = append(others, groupText(&out, g))
		}
	}
	m.Text = slices.Concat(m.Text, waiting, others)
}

// tellMissing describes the first of the missing ranks, and counts the rest.
func (e *explainer) tellMissing(m *MPI, missing map[int]bool) {
	for i := range e.rec.Tasks {
		t := &e.rec.Tasks[i]
		if !missing[t.Rank] {
			continue
		}
		if len(m.Missing) == missingMax {
			break
		}
		one := MissingRank{Rank: t.Rank, MPI: t.MPI, Status: t.Status, Doing: t.Doing, Text: missingText(t)}
		m.Missing = append(m.Missing, one)
		m.Text = append(m.Text, one.Text)
	}
	if n := m.MissingTotal - len(m.Missing); n > 0 {
		m.Text = append(m.Text, fmt.Sprintf("and %d more", n))
	}
}

// isBehind: a rank of which nothing was heard, while others have called init.
func (e *explainer) isBehind(t *step.Task) bool {
	return t.MPI == nil && (t.State == step.TaskRunning || t.State == step.TaskStarting || e.rec.State.Final())
}

// waitedFor are the ranks that those with this progress wait for: as the plugin
// says, else the ranks that are not in the same fence.
func (e *explainer) waitedFor(p *step.MPIProgress) []int {
	if !p.Waits() || p.Finalized() {
		return nil
	}
	if p.WaitsFor != "" {
		ranks, _ := step.ParseCPUList(p.WaitsFor) // nil with an error
		return ranks
	}
	if !inFence(p) {
		return nil
	}
	var ranks []int
	for i := range e.rec.Tasks {
		if o := e.rec.Tasks[i].MPI; o == nil || o.Finalized() || o.Waiting != p.Waiting && o.Fences <= p.Fences {
			ranks = append(ranks, e.rec.Tasks[i].Rank)
		}
	}
	return ranks
}

// inFence: it waits for all ranks of the step.
func inFence(p *step.MPIProgress) bool {
	return strings.HasPrefix(p.Waiting, "fence ") || strings.HasPrefix(p.Waiting, "ring ")
}

func groupText(g *MPIGroup, p step.ProgressGroup) string {
	text := ranksText(p.Ranks) + " " + p.MPI.Words(len(p.Ranks))
	if g.WaitsFor != "" {
		word := "rank"
		if strings.ContainsAny(g.WaitsFor, ",-") {
			word = "ranks"
		}
		by := " for "
		if !inFence(g.MPI) {
			by = ", which must come from "
		}
		text += by + word + " " + cut(g.WaitsFor, ",", 16)
	}
	return text
}

// missingText describes a rank that others wait for.
func missingText(t *step.Task) string {
	text := fmt.Sprintf("rank %d %s", t.Rank, t.MPI)
	switch {
	case t.State == step.TaskFailed:
		text += "; it never ran its command"
	case t.Status != nil && t.Doing == nil:
		text += "; it ended: " + t.Status.Describe()
	case t.Doing != nil:
		text += "; " + t.Doing.String()
	case t.PID != nil:
		text += fmt.Sprintf("; pid %d", *t.PID)
	}
	return text
}
