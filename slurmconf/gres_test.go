package slurmconf

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// nowhere leaves the place of a Gres out of a comparison.
var nowhere = cmpopts.IgnoreFields(Gres{}, "File", "Line")

func TestGres(t *testing.T) {
	all := gpuEnv()
	gpu := func(kind string, count uint64, files ...string) Gres {
		return Gres{Name: "gpu", Type: kind, Count: count, Files: files, Flags: all}
	}
	for _, c := range []struct {
		name       string
		node, gres string // Gres= of the node vm, gres.conf
		want       []Gres
		drain      []string
		problems   []string
	}{
		{name: "nothing"},
		{
			name: "devices", node: "gpu:2", gres: "Name=gpu File=/dev/nvidia[0-1]\n",
			want: []Gres{gpu("", 2, "/dev/nvidia0", "/dev/nvidia1")},
		},
		{
			name: "types, in the order of gres.conf", node: "gpu:b:1,gpu:a:2",
			gres: "Name=gpu Type=a File=/dev/n0 Cores=0-1\nName=gpu Type=b File=/dev/n1 CPUs=3,2\nName=gpu Type=a File=/dev/n2 Links=16,8,-1\n",
			want: []Gres{
				{Name: "gpu", Type: "a", Count: 1, Files: []string{"/dev/n0"}, Cores: []int{0, 1}, Flags: all},
				{Name: "gpu", Type: "b", Count: 1, Files: []string{"/dev/n1"}, Cores: []int{2, 3}, Flags: all},
				{Name: "gpu", Type: "a", Count: 1, Files: []string{"/dev/n2"}, Flags: all},
			},
			problems: []string{
				`ignored: gres.conf:3: Links: read, not used yet`,
			},
		},
		{
			name: "counted only, by both files or by one", node: "scratch:100G,lic:x:3,free:no_consume:7",
			gres: "Name=scratch Count=100G Flags=CountOnly\n",
			want: []Gres{
				{Name: "scratch", Count: 100 << 30, Flags: []string{GresCountOnly}},
				{Name: "lic", Type: "x", Count: 3},
				{Name: "free", Count: 7, NoConsume: true},
			},
		},
		{
			name: "no type in Gres=: the lines keep theirs", node: "gpu:2", gres: "Name=gpu Type=a File=/dev/n0\nName=gpu Type=b File=/dev/n1\n",
			want: []Gres{gpu("a", 1, "/dev/n0"), gpu("b", 1, "/dev/n1")},
		},
		{
			name: "no type in gres.conf: they take those of Gres=", node: "gpu:a:1,gpu:b:2", gres: "Name=gpu File=/dev/n[0-2]\n",
			want: []Gres{gpu("a", 1, "/dev/n0"), gpu("b", 2, "/dev/n1", "/dev/n2")},
		},
		{
			name: "one device of several files", node: "gpu:2", gres: "Name=gpu MultipleFiles=/dev/m[0-1]\nName=gpu Count=1 File=/dev/n0\n",
			want: []Gres{{Name: "gpu", Count: 1, Files: []string{"/dev/m0", "/dev/m1"}, MultipleFiles: true, Flags: all}, gpu("", 1, "/dev/n0")},
		},
		{
			name: "other nodes' lines", node: "gpu:1", gres: "NodeName=x Name=gpu File=/dev/n[0-3]\nNodeName=vm,y Name=gpu File=/dev/n7\nNodeName=y AutoDetect=nvml\n",
			want: []Gres{gpu("", 1, "/dev/n7")},
		},
		{
			name: "detection switched off here", node: "gpu:1", gres: "AutoDetect=nvml\nNodeName=vm AutoDetect=off Name=gpu File=/dev/n0\n",
			want: []Gres{gpu("", 1, "/dev/n0")},
		},
		{
			name: "detection for others: this node has none", gres: "AutoDetect=nvml\nNodeName=x Name=gpu File=/dev/n0\n",
			problems: []string{"ignored: gres.conf:1: AutoDetect=nvml: not supported here"},
		},
		{
			name: "detection beside lines", node: "gpu:1", gres: "AutoDetect=nvml\nName=gpu File=/dev/n0\n",
			want:     []Gres{gpu("", 1, "/dev/n0")},
			problems: []string{"ignored: gres.conf:1: AutoDetect=nvml: not supported here"},
		},
		{
			name: "detection alone", node: "gpu:a:1", gres: "AutoDetect=nvml\n",
			drain: []string{"gres/gpu:a: slurm.conf has 1, gres.conf 0"},
			problems: []string{
				`error: gres.conf:1: cannot use AutoDetect="nvml": finding devices by itself is not supported, and no line names the devices of gpu:a; write the node's devices by File=, and AutoDetect=off for this node`,
				`warning: slurm.conf:2: Gres="gpu:a:1": gpu:a:1, but gres.conf has 0; the node is drained: mend one of them`,
			},
		},
		{
			name: "environment: told, inherited, none", node: "gpu:5",
			gres: "Name=gpu Type=a File=/dev/n0 Flags=AMD_gpu_env,explicit\nName=gpu Type=a File=/dev/n1\nName=gpu Type=b File=/dev/n2 Flags=no_gpu_env\nName=gpu Type=b File=/dev/n3\nName=gpu Type=c File=/dev/n4\n",
			want: []Gres{
				{Name: "gpu", Type: "a", Count: 1, Files: []string{"/dev/n0"}, Flags: []string{GresAMDEnv}},
				{Name: "gpu", Type: "a", Count: 1, Files: []string{"/dev/n1"}, Flags: []string{GresAMDEnv}},
				{Name: "gpu", Type: "b", Count: 1, Files: []string{"/dev/n2"}},
				{Name: "gpu", Type: "b", Count: 1, Files: []string{"/dev/n3"}},
				gpu("c", 1, "/dev/n4"),
			},
		},
		{
			name: "fewer in gres.conf", node: "gpu:a:3", gres: "Name=gpu Type=a File=/dev/n0\nName=gpu File=/dev/n1\n",
			want:     []Gres{gpu("a", 1, "/dev/n0"), gpu("a", 1, "/dev/n1")},
			drain:    []string{"gres/gpu:a: slurm.conf has 3, gres.conf 2"},
			problems: []string{`warning: slurm.conf:2: Gres="gpu:a:3": gpu:a:3, but gres.conf has 2; the node is drained: mend one of them`},
		},
		{
			name: "a gpu without gres.conf", node: "gpu:1",
			drain:    []string{"gres/gpu: slurm.conf has 1, gres.conf 0"},
			problems: []string{`warning: slurm.conf:2: Gres="gpu:1": gpu:1, but gres.conf has 0; the node is drained: mend one of them`},
		},
		{
			name: "more in gres.conf", node: "gpu:1", gres: "Name=gpu File=/dev/n[0-2]\n",
			want:     []Gres{gpu("", 1, "/dev/n0")},
			problems: []string{`warning: gres.conf:1: 2 of 3 gpu are left out: NodeName's Gres= has no more; write Gres=gpu:3 for this node into slurm.conf`},
		},
		{
			name: "nothing in Gres=", gres: "Name=scratch Type=ssd Count=5\n",
			problems: []string{`warning: gres.conf:1: 5 of 5 scratch:ssd are left out: NodeName's Gres= has no more; write Gres=scratch:ssd:5 for this node into slurm.conf`},
		},
		{
			name: "names that the site has not", node: "frob:1", gres: "Name=grid Count=2\n",
			problems: []string{
				`error: slurm.conf:2: cannot use Gres="frob:1": GresTypes has not "frob"; add it there`,
				`warning: gres.conf:1: Name="grid": it is left out, since GresTypes has it not; write GresTypes=gpu,scratch,lic,free,mps,grid into slurm.conf`,
			},
		},
		{
			name: "shared GPUs", node: "gpu:1,mps:200", gres: "Name=gpu File=/dev/n0\nName=mps Count=200 File=/dev/n0 Flags=one_sharing\n",
			want: []Gres{gpu("", 1, "/dev/n0")},
			problems: []string{
				`warning: slurm.conf:2: Gres="gpu:1,mps:200": mps is left out: sharing a GPU among steps is not supported`,
				`warning: gres.conf:2: Name="mps": it is left out: sharing a GPU among steps is not supported`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string]string{"slurm.conf": "GresTypes=gpu,scratch,lic,free,mps\nNodeName=vm\n", "gres.conf": c.gres}
			if c.node != "" {
				files["slurm.conf"] = strings.Replace(files["slurm.conf"], "=vm", "=vm Gres="+c.node, 1)
			}
			got, probs, dir := load(t, files)
			if diff := cmp.Diff(c.want, got.Gres, nowhere, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.drain, got.DrainReasons); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(c.problems, lines(probs, dir)); diff != "" {
				t.Error(diff)
			}
			for _, g := range got.Gres {
				if d := g.Devices(); len(g.Files) > 0 && uint64(len(d)) != g.Count || len(g.Files) == 0 && d != nil {
					t.Errorf("%+v has devices %v", g, d)
				}
			}
		})
	}
}

// TestGresAlone: a slurm.conf without nodes leaves it to gres.conf.
func TestGresAlone(t *testing.T) {
	c, probs, dir := load(t, map[string]string{"slurm.conf": "", "gres.conf": "Name=lic Count=2\nName=none Count=0\n"})
	if len(probs) > 0 {
		t.Errorf("problems %v", probs)
	}
	if diff := cmp.Diff([]Gres{{Name: "lic", Count: 2, File: filepath.Join(dir, "gres.conf"), Line: 1}}, c.Gres); diff != "" {
		t.Error(diff)
	}
}

func TestGresMistakes(t *testing.T) {
	long := strings.Repeat("x", 64)
	for line, want := range map[string]string{
		"Frob=1 Name=lic":                                         `1: cannot use key "Frob": there is none of that name`,
		"Name=a/b":                                                `1: cannot use Name="a/b": "a/b" is no name: it may have letters, digits and -_.+ in it; write a word such as gpu or a100`,
		"Name=" + long:                                            `1: cannot use Name="` + long + `": the name "` + long + `" has more than 63 bytes; write a word such as gpu or a100`,
		"Name=lic Type=\"\"":                                      `1: cannot use Type="": a name is empty; write a word such as gpu or a100`,
		"Name=lic Count=many":                                     `1: cannot use Count="many": "many" is no count: write digits, and K, M, G, T or P behind them; write a number such as 4 or 10G`,
		"Name=lic Count=99999P":                                   `1: cannot use Count="99999P": the count "99999P" is out of range; write a number such as 4 or 10G`,
		"Name=lic Count=-1":                                       `1: cannot use Count="-1": "-1" is no count: write digits, and K, M, G, T or P behind them; write a number such as 4 or 10G`,
		"Name=gpu File=nvidia0":                                   `1: cannot use File="nvidia0": "nvidia0" is not an absolute path; write device files such as /dev/nvidia[0-3]`,
		"Name=gpu File=/dev/n[0-":                                 `1: cannot use File="/dev/n[0-": cannot expand host list "/dev/n[0-": a bracket is not closed; write device files such as /dev/nvidia[0-3]`,
		"Name=gpu File=/dev/n[0-2000]":                            `1: cannot use File="/dev/n[0-2000]": more than 1024 files; write device files such as /dev/nvidia[0-3]`,
		"Name=gpu File=/dev/n0,/dev//n0":                          `1: cannot use File="/dev/n0,/dev//n0": a file is given twice; write device files such as /dev/nvidia[0-3]`,
		"Name=gpu File=,":                                         `1: cannot use File=",": no file is named; write device files such as /dev/nvidia[0-3]`,
		"Name=gpu File=/dev/n0 MultipleFiles=/dev/n1":             `1: cannot use MultipleFiles="/dev/n1": the line names its files already: File excludes MultipleFiles; remove one of them`,
		"Name=gpu Count=3 File=/dev/n[0-1]":                       `1: cannot use Count="3": File names 2; remove Count, or name as many files`,
		"Name=gpu Count=2 MultipleFiles=/dev/n[0-1]":              `1: cannot use Count="2": all of MultipleFiles are one device; write Count=1, or File= for several devices`,
		"Name=gpu Count=2":                                        `1: cannot use Name="gpu": a gpu needs its device files; name its devices by File=, or write Flags=CountOnly`,
		"Name=gpu File=/dev/n0 Flags=no_gpu_env,opencl_env":       `1: cannot use Flags="no_gpu_env,opencl_env": no_gpu_env excludes the other flags of the environment; write it alone`,
		"Name=gpu File=/dev/n0 Flags=cuda":                        `1: Flags="cuda": flag "cuda" is not known and has no effect; write some of CountOnly,nvidia_gpu_env,amd_gpu_env,intel_gpu_env,opencl_env,no_gpu_env,explicit,one_sharing,all_sharing`,
		"NodeName=x AutoDetect=cuda":                              `1: cannot use AutoDetect="cuda": there is no such detection; write AutoDetect=off, and the devices by File=`,
		"NodeName=vm AutoDetect=off\nNodeName=vm AutoDetect=rsmi": `2: cannot use AutoDetect="rsmi": gres.conf:1 says "off" for this node; write the same`,
		"Count=3":                `1: cannot use a line that names no resource; write Name= into it`,
		"NodeName=x[1- Name=lic": `1: cannot use NodeName="x[1-": cannot expand host list "x[1-": a bracket is not closed; write a list such as n[1-3,5],m`,
		"NodeName=x Name=gpu Count=3 File=/dev/n0":                                        `1: cannot use Count="3": File names 1; remove Count, or name as many files`,
		"Name=gpu File=/dev/n0\nName=nic File=/dev/n0":                                    `2: cannot use File="/dev/n0": "/dev/n0" is a device of gres.conf:1 already; remove it from one of them`,
		"Name=lic Count=1\nName=lic Count=2":                                              `2: cannot use Name="lic": gres.conf:1 counts the same already; remove one of them`,
		"Name=nic File=/dev/n0\nName=nic Count=2":                                         `2: cannot use Name="nic": gres.conf:1 is of this name and differs in having files; name files in all lines of one name, or in none`,
		"Name=gpu File=/dev/n0 Flags=amd_gpu_env\nName=gpu File=/dev/n1 Flags=opencl_env": `2: cannot use Name="gpu": gres.conf:1 is of this name and type and differs in the flags of its environment; write the same Flags`,
		"Name=gpu File=/dev/n[0-1023]\nName=gpu File=/dev/m0":                             `2: cannot use File="/dev/m0": the node has more than 1024 of them`,
	} {
		_, probs, dir := load(t, map[string]string{"slurm.conf": "", "gres.conf": line + "\n"})
		got := strings.ReplaceAll(strings.Join(lines(probs, dir), "\n"), "error: gres.conf:", "")
		if got = strings.ReplaceAll(got, "warning: gres.conf:", ""); got != want {
			t.Errorf("%q: got %s\nwant %s", line, got, want)
		}
	}
}

// TestGresLinesAreBounded: each line is compared with those before it.
func TestGresLinesAreBounded(t *testing.T) {
	var b strings.Builder
	for i := range 2 * gresFilesMax {
		fmt.Fprintf(&b, "Name=x%d\n", i)
	}
	c, probs, _ := load(t, map[string]string{"slurm.conf": "", "gres.conf": b.String()})
	if len(c.Gres) != gresFilesMax || len(probs) != 1 || !strings.Contains(probs[0].Text, "more than 1024 lines") {
		t.Errorf("%d resources, %v", len(c.Gres), probs)
	}
}

func TestCheckDevices(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Config{Gres: []Gres{
		{Name: "gpu", Type: "a", Count: 4, Files: []string{"/dev/null", dir + "/n0", dir + "/n1", plain}, File: "/gres.conf", Line: 3},
		{Name: "scratch", Count: 4},
		{Name: "nic", Count: 1, Files: []string{plain + "/x"}, File: "/gres.conf", Line: 4},
	}}
	probs, drain := c.CheckDevices()
	want := []string{
		`warning: /gres.conf:3: cannot find device "n0" of gpu:a: no such file or directory; the node is drained: load the driver, or take the device out of gres.conf and Gres=`,
		`warning: /gres.conf:3: cannot find device "n1" of gpu:a: no such file or directory; the node is drained: load the driver, or take the device out of gres.conf and Gres=`,
		`warning: /gres.conf:3: "plain" of gpu:a is no device: no step can be kept from it`,
		`warning: /gres.conf:4: cannot find device "plain/x" of nic: not a directory; the node is drained: load the driver, or take the device out of gres.conf and Gres=`,
	}
	if diff := cmp.Diff(want, lines(probs, dir)); diff != "" {
		t.Error(diff)
	}
	wantDrain := []string{"gres/gpu:a: " + dir + "/n[0-1]: no such file or directory", "gres/nic: " + plain + "/x: not a directory"}
	if diff := cmp.Diff(wantDrain, drain); diff != "" {
		t.Error(diff)
	}
}

func FuzzGres(f *testing.F) {
	for _, s := range [][2]string{
		{"gpu:2", "Name=gpu File=/dev/n[0-1] Flags=amd_gpu_env"},
		{"gpu:a:1,lic:3G", "NodeName=vm Name=gpu Type=a MultipleFiles=/dev/n[0-1] Links=-1,2 Cores=3,1-2"},
		{"gpu:t:no_consume:1", "AutoDetect=off\nName=lic Count=2K Flags=CountOnly\nName=gpu File=/dev/x"},
	} {
		f.Add(s[0], s[1])
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, node, gres string) {
		if strings.Contains(gres, "clude") || strings.ContainsAny(node, "\n\r\\#\"") {
			t.Skip() // FuzzLoad's; and the machine's own files are not to be read
		}
		for name, text := range map[string]string{"slurm.conf": "GresTypes=gpu,lic\nNodeName=vm Gres=\"" + node + "\"\n", "gres.conf": gres} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm")
		if err != nil {
			t.Fatal(err)
		}
		has, seen := map[string]uint64{}, map[string]bool{}
		for _, g := range c.Gres {
			if d := g.Devices(); g.Count == 0 || d != nil && uint64(len(d)) != g.Count {
				t.Errorf("a resource that cannot be: %+v", g)
			}
			has[g.Name] += g.Count
			for _, file := range g.Files {
				if seen[file] || !filepath.IsAbs(file) {
					t.Errorf("device %q twice, or of no place", file)
				}
				seen[file] = true
			}
		}
		if slices.ContainsFunc(probs, func(p Problem) bool { return p.Severity == SeverityError && filepath.Base(p.File) == "slurm.conf" }) {
			return // the line could not be read
		}
		for _, want := range c.Node.Gres { // never more than the node says
			has[want.Name] -= min(has[want.Name], want.Count)
		}
		for name, n := range has {
			if n > 0 {
				t.Errorf("%d %s more than Gres= has", n, name)
			}
		}
	})
}
