package selection

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
)

// TestGres are two cards of one type, one of another, and an amount.
func testGres() []Gres {
	cuda := []string{"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"}
	return []Gres{
		{Name: "gpu", Type: "a", Count: 2, First: 0, Files: [][]string{{"/dev/nvidia0"}, {"/dev/nvidia1"}}, Env: cuda},
		{Name: "gpu", Type: "b", Count: 1, First: 2, Files: [][]string{{"/dev/nvidia4", "/dev/nvidia4x"}}, Env: cuda[:1]},
		{Name: "scratch", Count: 100},
		{Name: "fast", Count: 1, NoConsume: true},
	}
}

func want(t *testing.T, text string) []step.GresRequest {
	t.Helper()
	list, err := srunopt.ParseGres(text)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestGresPool(t *testing.T) {
	for _, c := range []struct {
		name  string
		held  []string
		want  string
		share bool
		got   string
		says  string
		never bool
	}{
		{"lowest first", nil, "gpu", false, "gpu:a:1(IDX:0)", "", false},
		{"all types", nil, "gpu:3", false, "gpu:a:2(IDX:0-1),gpu:b:1(IDX:2)", "", false},
		{"by type", nil, "gpu:b:1", false, "gpu:b:1(IDX:2)", "", false},
		{"both types by name", nil, "gpu:b:1,gpu:a:1", false, "gpu:b:1(IDX:2),gpu:a:1(IDX:0)", "", false},
		{"beside others", []string{"gpu:1"}, "gpu:1", false, "gpu:a:1(IDX:1)", "", false},
		{"an amount", []string{"scratch:40"}, "scratch:60", false, "scratch:60", "", false},
		{"none", nil, "gpu:0", false, "", "", false},
		{"nothing", nil, "", false, "", "", false},
		{"not used up", []string{"fast:1", "fast:1"}, "fast:1", false, "fast:1", "", false},
		{"more than is free", []string{"gpu:2"}, "gpu:2", false, "", "it needs gpu:2, and of 3 gpu 1 are free", false},
		{"more of an amount", []string{"scratch:50"}, "scratch:60", false, "", "of 100 scratch 50 are free", false},
		{"more than there are", nil, "gpu:4", false, "", "it needs gpu:4, and there are 3 gpu in all", true},
		{"no such type", nil, "gpu:c:1", false, "", "it needs gpu:c:1, and there is gpu:a:2,gpu:b:1 only", true},
		{"no such name", nil, "fpga:1", false, "", "it needs fpga:1, and there is gpu:a:2,gpu:b:1,scratch:100,fast:1 only", true},
		{"the second fails", nil, "gpu:1,fpga:1", false, "", "fpga:1", true},
		{"shared: free ones first", []string{"gpu:a:1"}, "gpu:a:1", true, "gpu:a:1(IDX:1)", "", false},
		{"shared", []string{"gpu:a:2"}, "gpu:a:1", true, "gpu:a:1(IDX:0)", "", false},
		{"shared in part", []string{"gpu:2"}, "gpu:2", true, "gpu:a:1(IDX:0),gpu:b:1(IDX:2)", "", false},
		{"shared, each once", nil, "gpu:4", true, "", "there are 3 gpu in all", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newGresPool(testGres())
			for _, h := range c.held {
				if _, err := p.take(want(t, h), false); err != nil {
					t.Fatal(err)
				}
			}
			before := slices.Clone(p.items)
			got, err := p.take(want(t, c.want), c.share)
			if c.says != "" {
				e, ok := err.(*gresError)
				if !ok || !strings.Contains(e.Error(), c.says) || e.never() != c.never {
					t.Fatalf("%v, %v; want a refusal with %q", got, err, c.says)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if s := srunopt.FormatAllocs(sorted(got)); s != srunopt.FormatAllocs(sorted(parseAllocs(c.got))) {
				t.Errorf("got %s, want %s", s, c.got)
			}
			p.release(got)
			if !reflect.DeepEqual(p.items, before) {
				t.Errorf("after the release: %+v, before: %+v", p.items, before)
			}
		})
	}
}

// parseAllocs reads the form of FormatAllocs, for the tables.
func parseAllocs(s string) (out []step.GresAlloc) {
	for _, word := range strings.SplitAfter(s, ")") {
		word = strings.Trim(word, ",")
		if word == "" {
			continue
		}
		head, idx, _ := strings.Cut(strings.TrimSuffix(word, ")"), "(IDX:")
		list, err := srunopt.ParseGres(head)
		if err != nil {
			panic(err)
		}
		a := step.GresAlloc{Name: list[0].Name, Type: list[0].Type, Count: list[0].Count}
		if a.Index, err = step.ParseCPUList(idx); err != nil {
			panic(err)
		}
		out = append(out, a)
	}
	return out
}

func sorted(list []step.GresAlloc) []step.GresAlloc {
	out := slices.Clone(list)
	slices.SortFunc(out, func(a, b step.GresAlloc) int { return strings.Compare(a.String(), b.String()) })
	return out
}

func TestGresEnv(t *testing.T) {
	node := testGres()
	for _, c := range []struct {
		name       string
		has        string
		to         GresScope
		env, unset string
	}{
		// The digits of the files, where they tell all apart; relative ones where
		// the others are hidden.
		{"all", "gpu:a:2(IDX:0-1),gpu:b:1(IDX:2)", GresScope{}, "SLURM_STEP_GPUS=0,1,4 SLURM_GPUS_ON_NODE=3 CUDA_VISIBLE_DEVICES=0,1,4 ROCR_VISIBLE_DEVICES=0,1", ""},
		{"hidden", "gpu:a:1(IDX:1),gpu:b:1(IDX:2)", GresScope{Local: true}, "SLURM_STEP_GPUS=1,4 SLURM_GPUS_ON_NODE=2 CUDA_VISIBLE_DEVICES=0,1 ROCR_VISIBLE_DEVICES=0", ""},
		{"by flags", "gpu:b:1(IDX:2)", GresScope{}, "SLURM_STEP_GPUS=4 SLURM_GPUS_ON_NODE=1 CUDA_VISIBLE_DEVICES=4", "ROCR_VISIBLE_DEVICES"},
		{"batch", "gpu:a:1(IDX:0)", GresScope{Batch: true}, "SLURM_JOB_GPUS=0 SLURM_GPUS_ON_NODE=1 CUDA_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=0", "SLURM_STEP_GPUS"},
		{"none", "", GresScope{}, "", "SLURM_GPUS_ON_NODE SLURM_STEP_GPUS CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"},
		{"an amount only", "", GresScope{Local: true}, "", "SLURM_GPUS_ON_NODE SLURM_STEP_GPUS CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"},
	} {
		env, unset := GresEnv(node, parseAllocs(c.has), c.to)
		if got := strings.Join(env, " "); got != c.env {
			t.Errorf("%s: env %q, want %q", c.name, got, c.env)
		}
		if got := strings.Join(unset, " "); got != c.unset {
			t.Errorf("%s: unset %q, want %q", c.name, got, c.unset)
		}
	}
	if env, unset := GresEnv(nil, nil, GresScope{}); env != nil || unset != nil {
		t.Errorf("a node without GPUs: %q, %q", env, unset)
	}
	// Files that tell nothing: the place in gres.conf.
	node[0].Files = [][]string{{"/dev/left"}, {"/dev/right"}}
	if env, _ := GresEnv(node, parseAllocs("gpu:a:1(IDX:1)"), GresScope{}); env[0] != "SLURM_STEP_GPUS=1" {
		t.Errorf("env %q", env)
	}
}
