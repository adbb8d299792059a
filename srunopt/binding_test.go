package srunopt

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"stepd/step"
)

func TestParseCPUBind(t *testing.T) {
	for text, want := range map[string]step.CPUBind{
		"verbose":               {Verbosity: Verbose},
		"v":                     {Verbosity: Verbose},
		"q,v,sockets":           {Verbosity: Verbose, Kind: CPUBindSockets},
		"verbose,quiet":         {Verbosity: Quiet},
		"no":                    {Kind: CPUBindNone},
		"NONE":                  {Kind: CPUBindNone},
		"cores,sockets":         {Kind: CPUBindSockets}, // the last one counts
		"rank":                  {Kind: CPUBindRank},
		"boards":                {Kind: CPUBindBoards},
		"map_cpu:0":             {Kind: CPUBindMap, List: "0"},
		"map_cpu:0,1,verbose":   {Kind: CPUBindMap, List: "0,1", Verbosity: Verbose},
		"v,map_cpu:0x1f*2,5":    {Kind: CPUBindMap, List: "0x1f*2,5", Verbosity: Verbose},
		"mask_cpu:f,0xF0,a*2":   {Kind: CPUBindMask, List: "f,0xF0,a*2"},
		"mask_cpu:f,cores":      {Kind: CPUBindCores},
		"map_ldom:1,,0":         {Kind: CPUBindMapLdom, List: "1,0"}, // as srun takes it
		"mask_ldom:3":           {Kind: CPUBindMaskLdom, List: "3"},
		"map_cpu:1,map_cpu:2,3": {Kind: CPUBindMap, List: "2,3"},
	} {
		got, err := ParseCPUBind(text)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"":                              "is empty",
		",":                             "is empty",
		"foo":                           `"foo" is no type`,
		"core":                          `"core" is no type`,
		"map_cpu":                       "the list is empty",
		"map_cpu:":                      "the list is empty",
		"map_cpu:x":                     `"x" is not a number`,
		"map_cpu:-1":                    `"-1" is not a number`,
		"map_cpu:1*0":                   "repeated",
		"map_cpu:1*":                    "repeated",
		"map_cpu:1*65534":               "repeated",
		"map_cpu:65536":                 "not a number below",
		"map_cpu:1 2":                   "not a number",
		"mask_cpu:zz":                   "not a hexadecimal mask",
		"mask_cpu:0x":                   "not a hexadecimal mask",
		"mask_cpu:*2":                   "not a hexadecimal mask",
		"cores:1":                       "takes no list",
		"verbose,0,1":                   `"0" is no type`,
		"map_cpu:" + many("0,", 70000):  "limit",
		"mask_cpu:1" + many("0", 16384): "limit",
	} {
		got, err := ParseCPUBind(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80q: got %.80v, %v; want %q", text, got, err, want)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%.80q: the message has %d bytes", text, len(err.Error()))
		}
	}
}

func many(s string, n int) string { return strings.Repeat(s, n) }

func TestParseMemBind(t *testing.T) {
	for text, want := range map[string]step.MemBind{
		"verbose,local":       {Verbosity: Verbose, Kind: MemBindLocal},
		"nosort,verbose,none": {Verbosity: Verbose, Kind: MemBindNone},
		"sort":                {Sort: true},
		"p,map_mem:0,1":       {Prefer: true, Kind: MemBindMap, List: "0,1"},
		"map_mem:0*2,1,q":     {Verbosity: Quiet, Kind: MemBindMap, List: "0*2,1"},
		"mask_mem:0x3,1":      {Kind: MemBindMask, List: "0x3,1"},
		"rank,prefer":         {Prefer: true, Kind: MemBindRank},
	} {
		got, err := ParseMemBind(text)
		if err != nil || got != want {
			t.Errorf("%q: got %+v, %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "is empty", "bar": `"bar" is no type`, "map_mem": "the list is empty", "map_mem:a": "not a number",
		"prefer": "says", "prefer,none": "say which node", "sort:1": "takes no list", "local:1": "takes no list",
	} {
		if want == "says" {
			want = "say which node"
		}
		if got, err := ParseMemBind(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, %v; want %q", text, got, err, want)
		}
	}
}

// The texts were measured at 22.05.8: what srun puts into SLURM_DISTRIBUTION.
func TestDistribution(t *testing.T) {
	for _, c := range []struct {
		text, size string
		ntasks     int
		want       step.Distribution
		told       string
	}{
		{"block", "", 2, step.Distribution{Nodes: "block", Levels: 1}, "block"},
		{"*", "", 2, step.Distribution{Levels: 1}, "block"},
		{"*:*:*", "", 4, step.Distribution{Levels: 3}, "block:cyclic:cyclic"},
		{"Cyclic:*:fcyclic,NoPack", "", 2, step.Distribution{Nodes: "cyclic", Cores: "fcyclic", Pack: "nopack", Levels: 3}, "cyclic:cyclic:fcyclic,nopack"},
		{"block:block", "", 2, step.Distribution{Nodes: "block", Sockets: "block", Levels: 2}, "block:block"},
		{"Pack", "", 2, step.Distribution{Pack: "pack", Levels: 1}, "block,pack"},
		{"plane=4", "", 2, step.Distribution{Nodes: "plane", Plane: 4, Levels: 1}, "plane"},
		{"plane", "8", 2, step.Distribution{Nodes: "plane", Plane: 8, Levels: 1}, "plane"},
		{"arbitrary", "", 2, step.Distribution{Nodes: "arbitrary", Levels: 1}, "arbitrary"},
	} {
		got, err := ParseDistribution(c.text, c.size)
		if err != nil || got != c.want || DistributionText(got, c.ntasks, 1) != c.told {
			t.Errorf("%q: got %+v (%q), %v; want %+v (%q)", c.text, got, DistributionText(got, c.ntasks, 1), err, c.want, c.told)
		}
	}
	if got := DistributionText(step.Distribution{}, 1, 1); got != "cyclic" {
		t.Errorf("one task, nothing asked: %q", got)
	}
	for _, text := range []string{
		"", "foo", "block:foo", "plane", "plane=0", "plane=x", "plane=4:block", "planet", "plane=65534", "block:block:block:block",
		",Pack", "block,Packed", "block:plane=2", "block::cyclic", "fcyclic", "arbitrary:arbitrary",
	} {
		if got, err := ParseDistribution(text, ""); err == nil || !strings.Contains(err.Error(), "--distribution="+text) {
			t.Errorf("%q: got %+v, %v", text, got, err)
		}
	}
}

func TestBindList(t *testing.T) {
	got, err := bindList("0x11*2,0", true)
	want := []BindItem{{[]int{0, 4}, 2}, {nil, 1}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%s %v", d, err)
	}
	got, err = bindList("0x11,7*3", false)
	want = []BindItem{{[]int{17}, 1}, {[]int{7}, 3}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("%s %v", d, err)
	}
}

func TestBindingValidate(t *testing.T) {
	for _, c := range []struct {
		name  string
		b     step.Binding
		field string
	}{
		{"nothing", step.Binding{}, ""},
		{"all", step.Binding{
			CPU: step.CPUBind{Verbosity: Verbose, Kind: CPUBindMap, List: "0,1"}, Mem: step.MemBind{Kind: MemBindMask, List: "1", Prefer: true},
			Distribution: step.Distribution{Nodes: "plane", Plane: 2}, Hint: HintMultithread, ThreadsPerCore: 1, NTasksPerCore: 1, NTasksPerSocket: 8,
		}, ""},
		{"verbosity", step.Binding{CPU: step.CPUBind{Verbosity: "loud"}}, "binding.cpu"},
		{"kind", step.Binding{CPU: step.CPUBind{Kind: "help"}}, "binding.cpu"},
		{"no list", step.Binding{CPU: step.CPUBind{Kind: CPUBindMap}}, "binding.cpu"},
		{"list without kind", step.Binding{CPU: step.CPUBind{List: "0"}}, "binding.cpu"},
		{"bad list", step.Binding{CPU: step.CPUBind{Kind: CPUBindMask, List: "0\n1"}}, "binding.cpu"},
		{"mem kind", step.Binding{Mem: step.MemBind{Kind: "far"}}, "binding.mem"},
		{"mem list", step.Binding{Mem: step.MemBind{Kind: MemBindLocal, List: "0"}}, "binding.mem"},
		{"prefer", step.Binding{Mem: step.MemBind{Prefer: true}}, "binding.mem"},
		{"method", step.Binding{Distribution: step.Distribution{Sockets: "x\n"}}, "binding.distribution"},
		{"plane", step.Binding{Distribution: step.Distribution{Plane: 3}}, "binding.distribution"},
		{"levels", step.Binding{Distribution: step.Distribution{Levels: 4}}, "binding.distribution"},
		{"hint", step.Binding{Hint: "x"}, "binding.hint"},
		{"threads", step.Binding{ThreadsPerCore: -1}, "binding.threads_per_core"},
		{"per core", step.Binding{NTasksPerCore: step.TasksMax + 1}, "binding.ntasks_per_core"},
		{"per socket", step.Binding{NTasksPerSocket: -4}, "binding.ntasks_per_socket"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := goodRequest()
			r.Binding = c.b
			err := Validate(&r)
			if c.field == "" && err != nil || c.field != "" && (err == nil || !strings.HasPrefix(err.Error(), c.field+": ")) {
				t.Errorf("got %v, want an error of %q", err, c.field)
			}
		})
	}
}

// FuzzBinding: what a parser takes, Validate takes, too, after a trip through
// JSON, and it means the same.
func FuzzBinding(f *testing.F) {
	for _, s := range []string{"verbose,map_cpu:0,1*4", "mask_cpu:0xf,f0", "local", "prefer,map_mem:0x1", "block:cyclic:fcyclic,pack", "plane=4", "v,,none"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var b step.Binding
		var err [3]error
		b.CPU, err[0] = ParseCPUBind(s)
		b.Mem, err[1] = ParseMemBind(s)
		b.Distribution, err[2] = ParseDistribution(s, "")
		for _, e := range err {
			if e != nil && len(e.Error()) > 600 {
				t.Fatalf("the message has %d bytes", len(e.Error()))
			}
		}
		r := goodRequest()
		r.Binding = b
		if err := Validate(&r); err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		doc, _ := json.Marshal(b)
		var again step.Binding
		if err := json.Unmarshal(doc, &again); err != nil || again != b {
			t.Fatalf("%q: %+v, then %+v (%v)", s, b, again, err)
		}
		if b.CPU.List == "" {
			return
		}
		items, lerr := CPUItems(b.CPU)
		if lerr != nil || len(items) == 0 {
			t.Fatalf("%q: accepted, and its list: %v", s, lerr)
		}
		for _, i := range items {
			if i.Times < 1 || !slices.IsSorted(i.Numbers) || len(i.Numbers) > 0 && (i.Numbers[0] < 0 || i.Numbers[len(i.Numbers)-1] >= numberMax) {
				t.Fatalf("%q: item %+v", s, i)
			}
		}
	})
}
