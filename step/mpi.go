package step

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// MPIProgress is the point that a rank has reached in its MPI program.
type MPIProgress struct {
	// Phase is "started", "connected", "initialized" or "finalized".
	Phase string `json:"phase"`
	// Protocol is "PMI-1", "PMI-2" or "PMIx 4.2".
	Protocol string `json:"protocol,omitempty"`
	// Fences counts the fences that the rank has completed.
	Fences int `json:"fences"`
	// Waiting is the event that the rank waits for now, "" for none: "fence 3", "key \"a\" of
	// node". WaitsFor are the ranks that it waits for, as a list ("3,7"), where known.
	Waiting  string `json:"waiting,omitempty"`
	WaitsFor string `json:"waits_for,omitempty"`
}

// The phases of MPIProgress, in their order. A task without a known progress has sent
// nothing to its MPI server.
const (
	PhaseStarted     = "started"
	PhaseConnected   = "connected"
	PhaseInitialized = "initialized"
	PhaseFinalized   = "finalized"
)

// Depth orders progress: a rank of a lower depth is behind the others. nil is 0.
func (p *MPIProgress) Depth() int {
	if p == nil {
		return 0
	}
	phase := 1 + slices.Index([]string{PhaseStarted, PhaseConnected, PhaseInitialized, PhaseFinalized}, p.Phase)
	return phase<<32 + p.Fences
}

// Waits reports whether the rank waits for something.
func (p *MPIProgress) Waits() bool { return p != nil && p.Waiting != "" }

// Finalized reports whether the rank has left MPI.
func (p *MPIProgress) Finalized() bool { return p != nil && p.Phase == PhaseFinalized }

// String is the progress of one rank in words: "has called init (PMI-1), has come
// through 2 fences, waits in fence 3".
func (p *MPIProgress) String() string { return p.Words(1) }

// Words is the progress of so many ranks in words: "have called init ...".
func (p *MPIProgress) Words(ranks int) string {
	has, is, waits := "has", "is", "waits"
	if ranks > 1 {
		has, is, waits = "have", "are", "wait"
	}
	if p == nil {
		return has + " not called init"
	}
	var words []string
	switch p.Phase {
	case PhaseStarted:
		words = append(words, has+" not called init")
	case PhaseConnected:
		words = append(words, is+" connected and "+has+" not finished init")
	case PhaseInitialized:
		words = append(words, has+" called init")
	case PhaseFinalized:
		words = append(words, has+" called finalize")
	default:
		words = append(words, p.Phase)
	}
	if p.Protocol != "" {
		words[0] += " (" + p.Protocol + ")"
	}
	switch {
	case p.Fences == 1:
		words = append(words, has+" come through 1 fence")
	case p.Fences > 1:
		words = append(words, fmt.Sprintf("%s come through %d fences", has, p.Fences))
	}
	if p.Waiting != "" {
		words = append(words, waits+" "+p.where())
	}
	return strings.Join(words, ", ")
}

// where is Waiting with its preposition.
func (p *MPIProgress) where() string {
	if strings.HasPrefix(p.Waiting, "fence ") || strings.HasPrefix(p.Waiting, "ring ") {
		return "in " + p.Waiting
	}
	return "for " + p.Waiting
}

// ProgressGroup are ranks with the same progress.
type ProgressGroup struct {
	Ranks []int
	MPI   *MPIProgress // nil: unknown
}

// GroupProgress groups tasks by their progress, the groups that are behind first.
func GroupProgress(tasks []Task) []ProgressGroup {
	var groups []ProgressGroup
	at := map[MPIProgress]int{}
	for i := range tasks {
		var key MPIProgress // of none: no progress has an empty phase
		if tasks[i].MPI != nil {
			key = *tasks[i].MPI
		}
		place, known := at[key]
		if !known {
			place = len(groups)
			at[key] = place
			groups = append(groups, ProgressGroup{MPI: tasks[i].MPI})
		}
		groups[place].Ranks = append(groups[place].Ranks, tasks[i].Rank)
	}
	slices.SortStableFunc(groups, func(a, b ProgressGroup) int { return cmp.Compare(a.MPI.Depth(), b.MPI.Depth()) })
	return groups
}

// KeyValue is one pair; either may be any bytes.
type KeyValue struct {
	Key   string `json:"key"`
	Value []byte `json:"value"`
}
