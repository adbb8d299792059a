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
		if isSilent(r) {
			return m
		}
		return nil
	}
	groups := step.GroupProgress(r.Tasks)
	missing := e.missing(groups)
	m.MissingTotal = len(missing)
	e.tellGroups(m, groups, missing)
	e.tellMissing(m, missing)
	return m
}

// isSilent reports whether none of several tasks speaks, or has spoken, to the MPI plugin: an MPI
// program's library speaks to another one, and each of them believes to be alone.
func isSilent(r *step.Record) bool {
	return r.MPISilent || r.State == step.Running && len(r.Tasks) > 1 && r.ID.Step != step.BatchStep
}

// ranks finds why an MPI program does not go on, or was not one: its ranks do not speak, wait for each
// other, or wait where it is not heard here. Of a step that has ended the section of the ranks says how
// far they were.
func (e *explainer) ranks() {
	m := e.progress
	if m == nil {
		return
	}
	name := e.rec.ID.Name()
	if len(m.Groups) == 0 { // they are silent
		other := "pmi2"
		if e.rec.MPI == other {
			other = "pmix"
		}
		yet := ""
		if !e.rec.MPISilent {
			yet = " yet"
		}
		e.add(Finding{
			Kind: KindMPI, Text: fmt.Sprintf("no task has spoken PMI%s: %d singletons, if it is an MPI program", yet, max(e.rec.NTasks, len(e.rec.Tasks))),
			Hint: fmt.Sprintf("--mpi=%s, if its library wants that one and not %s; ldd shows what it is linked to", other, e.rec.MPI),
		})
		return
	}
	if e.rec.State != step.Running {
		return
	}
	for _, g := range m.Groups {
		if g.WaitsFor == "" {
			continue
		}
		f := Finding{Kind: KindMPI, Ranks: g.Ranks, Text: listText(g.Ranks) + waitsWords(&g)}
		f.Hint = fmt.Sprintf("stepctl top %s shows what they do; stepctl cancel %s ends the step", name, name)
		if len(m.Missing) > 0 {
			first := &m.Missing[0]
			switch pid := pidOf(e.rec.Tasks, first); {
			case first.Status != nil:
				f.Hint = fmt.Sprintf("rank %d has ended: what it wrote says more; stepctl cancel %s ends the others", first.Rank, name)
			case first.Doing != nil && heldHint(first.Doing.State) != "":
				f.Hint = fmt.Sprintf("rank %d is %s: %s", first.Rank, first.Doing.StateWords(), heldHint(first.Doing.State))
			case pid != 0:
				f.Hint = fmt.Sprintf("gdb -p %d (bt) shows where rank %d is; stepctl cancel %s ends the step", pid, first.Rank, name)
			}
		}
		e.add(f)
		return
	}
	if text, ok := elsewhere(e.rec); ok {
		e.add(Finding{Kind: KindMPI, Text: "no rank waits for another in PMI; in MPI's own calls they may", Hint: text})
	}
}

// pidOf is the process of a rank that others wait for, 0 where it is not known.
func pidOf(tasks []step.Task, m *MissingRank) int {
	for i := range tasks {
		if t := &tasks[i]; t.Rank == m.Rank && t.PID != nil {
			return *t.PID
		}
	}
	return 0
}

// waitsWords is where a group waits, and for whom: " wait in fence 2 for rank 7".
func waitsWords(g *MPIGroup) string {
	words := " wait"
	if isOne(g.Ranks) {
		words = " waits"
	}
	if inFence(g.MPI) {
		return words + " in " + g.MPI.Waiting + " for " + listText(g.WaitsFor)
	}
	return words + " for " + g.MPI.Waiting
}

// isOne reports whether a list has one rank.
func isOne(list string) bool { return !strings.ContainsAny(list, ",-") }

// listText is "rank 3" or "ranks 0-2,7" of a list; a long one is cut.
func listText(list string) string {
	word := "ranks "
	if isOne(list) {
		word = "rank "
	}
	return word + cut(list, ",", 8)
}

// elsewhere says where to look at ranks of which none waits for another in PMI: a deadlock in
// MPI's own messages is not heard here.
func elsewhere(r *step.Record) (text string, ok bool) {
	for i := range r.Tasks {
		t := &r.Tasks[i]
		if t.State != step.TaskRunning || t.PID == nil || t.MPI == nil || t.MPI.Phase != step.PhaseInitialized || t.MPI.Waits() {
			return "", false
		}
	}
	first := r.Tasks[0]
	return fmt.Sprintf("stepctl top %s shows which compute; gdb -p %d (bt) where rank %d is", r.ID.Name(), *first.PID, first.Rank), true
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
		by := " for "
		if !inFence(g.MPI) {
			by = ", which must come from "
		}
		text += by + listText(g.WaitsFor)
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
