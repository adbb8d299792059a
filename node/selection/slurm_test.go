package selection

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"stepd/srunopt"
	"stepd/step"
)

// slurmSites are the nodes of testdata/slurm.tsv, as package site makes them of the files in
// TestRootSelectRecord of integration/slurm.
func slurmSites() map[string]Config {
	cores := Config{Memory: Memory{MB: 1000, Consumable: true, DefPerCPU: 10}}
	for c := range 8 {
		cores.CPUs = append(cores.CPUs, 2*c, 2*c+1)
		cores.Cores = append(cores.Cores, Core{Socket: c / 4, CPUs: []int{2 * c, 2*c + 1}})
	}
	gpus := func(first, second []int) []Gres {
		return []Gres{
			{Name: "gpu", Count: 1, Files: [][]string{{"/dev/gpu0"}}, CPUs: first},
			{Name: "gpu", Count: 1, First: 1, Files: [][]string{{"/dev/gpu1"}}, CPUs: second},
		}
	}
	cores.Gres = gpus(cores.CPUs[8:], cores.CPUs[:8])
	with := func(change func(*Config)) Config { c := cores; change(&c); return c }
	return map[string]Config{
		"cpus":   with(func(c *Config) { c.Cores, c.Gres = nil, gpus(c.CPUs[4:8], c.CPUs[:4]) }),
		"cpu":    with(func(c *Config) { c.WholeCores = true }),
		"core":   with(func(c *Config) { c.Unit = UnitCore }),
		"socket": with(func(c *Config) { c.Unit = UnitSocket }),
		"one":    with(func(c *Config) { c.Unit, c.OneTaskPerCore = UnitCore, true }),
		"linear": with(func(c *Config) { c.Type = Linear }),
		"spec": with(func(c *Config) {
			c.Unit, c.Memory.MB = UnitCore, 900
			c.CPUs, c.Spec = []int{0, 1, 2, 3, 4, 5, 8, 9, 10, 11, 12, 13}, []int{6, 7, 14, 15}
			c.Cores = append(append([]Core{}, c.Cores[:3]...), c.Cores[4:7]...)
		}),
	}
}

// TestAsSlurm: the plugins give what Slurm's own gave, but for the differences that are named with
// their reason; each of these is one.
func TestAsSlurm(t *testing.T) {
	text, err := os.ReadFile("testdata/slurm.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows, differences := 0, 0
	for i, line := range strings.Split(strings.TrimSuffix(string(text), "\n"), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := append(strings.Split(line, "\t"), "", "")
		want, reason := f[3], f[5]
		if f[4] != "" {
			want = f[4]
			differences++
		}
		if (f[4] == "") != (reason == "") || f[4] == f[3] {
			t.Errorf("line %d: a difference has another answer and a reason", i+1)
		}
		rows++
		cfg, ok := slurmSites()[f[0]]
		if !ok {
			t.Fatalf("line %d: no such site %q", i+1, f[0])
		}
		if got := answer(t, New(cfg), strings.Split(f[1], " + "), f[2]); got != want {
			t.Errorf("line %d: %s after %q at site %s: %q, want %q; Slurm gives %q", i+1, f[2], f[1], f[0], got, want, f[3])
		}
	}
	if rows < 90 || differences > rows/6 {
		t.Errorf("%d requests, %d of them differ by intent", rows, differences)
	}
}

// answer is what the plugin gives a request, in the table's words.
func answer(t *testing.T, p Plugin, before []string, options string) string {
	for _, o := range before {
		if o == "-" {
			continue
		}
		sh, err := p.Test(parseOptions(t, o), RunNow)
		if err != nil {
			t.Fatalf("%s: %v", o, err)
		}
		p.Begin(sh)
	}
	req := parseOptions(t, options)
	sh, err := p.Test(req, RunNow)
	if _, never := p.Test(req, TestOnly); never != nil {
		return "never"
	}
	if err != nil {
		return "busy"
	}
	return strings.TrimSpace(fmt.Sprintf("CPUs %s, %d MB %s", step.FormatCPUList(sh.CPUs), sh.MB, srunopt.FormatAllocs(sh.Gres)))
}

// parseOptions makes a request of the table's options.
func parseOptions(t *testing.T, options string) *step.Request {
	t.Helper()
	req := &step.Request{NTasks: 1, CPUsPerTask: 1}
	words := strings.Fields(options)
	for i := 0; i < len(words); i++ {
		name, value, _ := strings.Cut(words[i], "=")
		if strings.HasPrefix(name, "-n") || strings.HasPrefix(name, "-c") {
			name, value = name[:2], name[2:]
		}
		n, _ := strconv.Atoi(value)
		switch name {
		case "-n":
			req.NTasks = n
		case "-c":
			req.CPUsPerTask = n
		case "-m": // how tasks are spread; ours does not depend on it
			i++
		case "--mem":
			req.Mem = new(uint64(n))
		case "--mem-per-cpu":
			req.MemPerCPU = new(uint64(n))
		case "--gres":
			req.Gres = want(t, value)
		case "--threads-per-core":
			req.Binding.ThreadsPerCore = n
		case "--ntasks-per-core":
			req.Binding.NTasksPerCore = n
		case "--ntasks-per-socket":
			req.Binding.NTasksPerSocket = n
		case "--hint":
			req.Binding.Hint = srunopt.HintNoMultithread
		default:
			t.Fatalf("no such option %q", words[i])
		}
	}
	return req
}
