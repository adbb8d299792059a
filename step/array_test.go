package step

import (
	"slices"
	"strings"
	"testing"
)

func TestParseArray(t *testing.T) {
	for text, want := range map[string]Array{
		"3":          {Tasks: []uint32{3}, Step: 1},
		"0-15:4%2":   {Tasks: []uint32{0, 4, 8, 12}, AtOnce: 2, Step: 4},
		"1,3,5-7":    {Tasks: []uint32{1, 3, 5, 6, 7}, Step: 1},
		"5,1-3:2,1":  {Tasks: []uint32{1, 3, 5}, Step: 1},
		"998-1000%9": {Tasks: []uint32{998, 999, 1000}, AtOnce: 9, Step: 1},
	} {
		got, err := ParseArray(text, 1001)
		if err != nil || !slices.Equal(got.Tasks, want.Tasks) || got.AtOnce != want.AtOnce || got.Step != want.Step {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"1001": "task 1001: task numbers are below 1001 (MaxArraySize)", "0-4294967295": "task 4294967295: task numbers are below 1001",
		"0-99999999999": "write task numbers", "": "write task numbers", "a": "write", "-1": "write", "3-1": "write", "1-3:0": "write", "3:2": "write",
		"1%0": "write", "1%": "write", "1,": "write", "1-2-3": "write", "1%2%3": "write", "1 ": "write",
	} {
		if got, err := ParseArray(text, 1001); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		strings.Repeat("0-1000,", 3) + "1": "its ranges name more than 2002 tasks", strings.Repeat("1,", 40000) + "1": "80001 bytes: 65536 is the limit",
	} {
		if got, err := ParseArray(text, 1001); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.20q: %+v, %v", text, got, err)
		}
	}
	a, err := ParseArray("2-8:3", 9)
	if err != nil {
		t.Fatal(err)
	}
	want := "SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=5 SLURM_ARRAY_TASK_COUNT=3 SLURM_ARRAY_TASK_MAX=8 SLURM_ARRAY_TASK_MIN=2 SLURM_ARRAY_TASK_STEP=3"
	if got := strings.Join(a.Of(7, 1).Env(), " "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := (*ArrayTask)(nil).Env(); got != nil {
		t.Errorf("of no array: %q", got)
	}
}

func FuzzParseArray(f *testing.F) {
	for _, s := range []string{"0-15:4%2", "1,3,5-7", "0-4294967295:4294967295"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseArray(s, 100)
		if err != nil {
			return
		}
		if len(a.Tasks) < 1 || len(a.Tasks) > 100 || !slices.IsSorted(a.Tasks) || a.Tasks[len(a.Tasks)-1] > 99 {
			t.Fatalf("%q: %+v", s, a)
		}
	})
}
