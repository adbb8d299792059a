package nodes

import (
	"testing"

	"stepd/step"
)

// A cancel may come from noded before the step has joined the others: it is
// kept until then.
func TestEndBeforeBegin(t *testing.T) {
	tree, err := Join(&step.Spec{
		Request: step.Request{NTasks: 2}, Layout: &step.Layout{Nodes: []step.LayoutNode{{Name: "a", Ranks: "0"}, {Name: "b", Ranks: "1"}}},
	}, func(text string) { t.Error(text) })
	if err != nil {
		t.Fatal(err)
	}
	tree.EndStep(step.NodeEnd{Why: step.EndCancel, Reason: "early"})
	if e := tree.(*Tree).early; e == nil || e.Reason != "early" {
		t.Errorf("kept %+v", e)
	}
}
