package explain

import (
	"cmp"
	"fmt"
	"strings"

	"stepd/step"
)

// memory finds processes that ended for want of memory.
func (e *explainer) memory() {
	const most = 8
	for i, k := range e.rec.OOM {
		if i == most {
			e.add(Finding{Kind: KindMemory, Text: fmt.Sprintf("and %d more, killed for want of memory", len(e.rec.OOM)-most)})
			break
		}
		f := Finding{Kind: KindMemory, Hint: "--mem or --mem-per-cpu asks for more"}
		switch k.Level {
		case "machine", "":
			f.Hint = "run fewer steps at once, or bound each by --mem: stepctl top shows who takes it"
		case "parent":
			f.Hint = "an administrator can raise it: noded's own cgroup, or one above it"
		}
		// The limit goes first, as far as it is known.
		f.Text, _, _ = strings.Cut(strings.Replace(k.String(), "Out Of Memory: ", "", 1), "; --mem")
		who := ""
		if k.Rank != nil {
			f.Ranks, who = fmt.Sprint(*k.Rank), fmt.Sprintf("rank %d: ", *k.Rank)
			f.Text = strings.TrimPrefix(f.Text, fmt.Sprintf("task %d: ", *k.Rank))
		}
		if at := strings.LastIndex(f.Text, ": the "); at >= 0 && k.Level != "" {
			f.Text, f.Detail = f.Text[at+2:], f.Text[:at]
		}
		f.Text = who + f.Text
		e.add(f)
	}
	if e.rec.State == step.OutOfMemory && len(e.rec.OOM) == 0 {
		e.add(Finding{Kind: KindMemory, Text: cmp.Or(e.rec.Reason, "the step's memory limit was reached"), Hint: "--mem or --mem-per-cpu asks for more"})
	}
}
