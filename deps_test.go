package stepd_test

import (
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The import rules of the project: package, what of ours it may import, and
// why. A package that is not listed fails the test, as does one that is gone.
var importRules = map[string]struct {
	may []string
	why string
}{
	"stepd/step":               {nil, "the vocabulary: standard library only"},
	"stepd/step/launch":        {[]string{"stepd/step"}, "what task and the mechanisms say to each other, MPI plugins among them: vocabulary, beside step"},
	"stepd/srunopt":            {[]string{"stepd/step"}, "srun's grammar of options and its bounds, options of plugins among them: vocabulary, beside step"},
	"stepd/internal/wire":      {nil, "the fields of records that C programs read: standard library only"},
	"stepd/internal/linux":     {nil, "system calls and nothing else"},
	"stepd/internal/manual":    {[]string{"stepd/internal/nearest", "stepd/internal/printable"}, "help screens, man pages and what is wrong with an option, in the same words"},
	"stepd/internal/build":     {nil, "which build a program is"},
	"stepd/internal/quickjson": {nil, "encoding/json for programs that live ten milliseconds"},
	"stepd/internal/oneproc":   {nil, "is initialised before all packages that start goroutines"},
	"stepd/internal/stack":     {nil, "one large stack at the beginning instead of four copies"},
	"stepd/internal/nofile":    {nil, "is initialised before package syscall: it imports none that imports that"},
	"stepd/docs":               {nil, "documents of which man pages are made"},
	"stepd/internal/testkit":   {nil, "what tests share"},
	"stepd/api":                {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/quickjson"}, "noded's API: its types, its client, and the kernel's word on its peers"},
	"stepd/api/stepapi":        {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/quickjson"}, "stepd's socket"},
	"stepd/task":               {[]string{"stepd/step", "stepd/internal/linux", "stepd/srunopt", "stepd/eventlog", "stepd/step/launch"}, "knows its neighbours by the interfaces that it declares; the kernel by system calls"},
	"stepd/task/cgroup":        {[]string{"stepd/step", "stepd/internal/linux", "stepd/step/launch", "stepd/srunopt"}, "a mechanism knows no other"},
	"stepd/task/confine":       {[]string{"stepd/proctrack", "stepd/slurmconf", "stepd/step", "stepd/step/launch", "stepd/task/cgroup"}, "joins tracker and limits for the daemons that make a step's place: what stepd does not pay for"},
	"stepd/task/device":        {[]string{"stepd/step", "stepd/internal/linux"}, "refuses devices by a program of the kernel's"},
	"stepd/task/oom":           {[]string{"stepd/step", "stepd/internal/linux", "stepd/step/launch"}, "a mechanism knows no other"},
	"stepd/task/affinity":      {[]string{"stepd/step", "stepd/internal/linux", "stepd/srunopt", "stepd/step/launch"}, "a task plugin is a mechanism, and knows no other"},
	"stepd/spank":              {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/wire", "stepd/step/launch", "stepd/srunopt"}, "a mechanism knows no other"},
	"stepd/spank/lint":         {[]string{"stepd/internal/nearest", "stepd/spank"}, "what only noded and stepctl pay for"},
	"stepd/spank/jobscript":    {[]string{"stepd/spank", "stepd/step", "stepd/step/launch"}, "a job's hooks around its steps, of stepd and slurmstepd: knows no daemon"},
	"stepd/proctrack":          {[]string{"stepd/step", "stepd/internal/linux", "stepd/step/launch"}, "a mechanism knows no other"},
	"stepd/proctrack/detect":   {[]string{"stepd/proctrack", "stepd/step", "stepd/internal/linux"}, "what the daemons pay for that make a step's place"},
	"stepd/jobcontainer":       {[]string{"stepd/step", "stepd/internal/linux", "stepd/step/launch", "stepd/internal/printable", "stepd/internal/rmtree"}, "a mechanism knows no other"},
	"stepd/acct":               {[]string{"stepd/step", "stepd/internal/linux", "stepd/step/launch"}, "a mechanism knows no other"},
	"stepd/mpi":                {[]string{"stepd/step", "stepd/internal/linux", "stepd/mpi/pmi2", "stepd/mpi/pmix", "stepd/step/launch"}, "one line of wiring for each plugin"},
	"stepd/mpi/spawn":          {[]string{"stepd/step", "stepd/api/stepapi", "stepd/srunopt", "stepd/step/launch"}, "the launcher's half of the steps that tasks start"},
	"stepd/mpi/pmi2":           {[]string{"stepd/step", "stepd/internal/wire", "stepd/internal/linux", "stepd/step/launch"}, "a mechanism knows no other"},
	"stepd/mpi/pmix":           {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/rmtree", "stepd/internal/wire", "stepd/step/launch"}, "a mechanism knows no other"},
	"stepd/stepio/replay":      {nil, "what is kept of output, and how it travels: stepd, noded and stepctl have it"},
	"stepd/stepio/live":        {[]string{"stepd/step", "stepd/internal/linux", "stepd/stepio/replay"}, "stepd's half of output that others may see"},
	"stepd/stepio":             {[]string{"stepd/step", "stepd/internal/linux", "stepd/api/stepapi", "stepd/step/launch"}, "the client's streams"},
	"stepd/stepio/relay":       {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/printable", "stepd/step/launch"}, "stepd's half of the streams: a mechanism knows no other"},
	"stepd/stepnet":            {[]string{"stepd/step", "stepd/step/launch", "stepd/internal/wire"}, "carries words and bytes; knows neither tasks nor clients"},
	"stepd/slurm/wire":         {nil, "Slurm's records as bytes, by release: no I/O, nothing of ours"},
	"stepd/slurm/munge":        {nil, "speaks with munged: knows no message"},
	"stepd/slurm/peers":        {[]string{"stepd/internal/linux", "stepd/internal/wire", "stepd/step/launch", "stepd/stepnet"}, "joins a step's daemons: knows neither Slurm's messages nor tasks"},
	"stepd/slurm/rpc":          {[]string{"stepd/slurm/munge", "stepd/slurm/wire"}, "sends Slurm's messages: knows no step"},
	"stepd/slurm/socket":       {[]string{"stepd/internal/linux", "stepd/slurm/wire", "stepd/step"}, "the step socket of slurmd and its commands: knows the step by the interface that it declares"},
	"stepd/slurm/check":        {[]string{"stepd/internal/linux", "stepd/slurm/oci", "stepd/slurm/wire", "stepd/slurmconf"}, "what is configured, or asked for, and not done: knows no step"},
	"stepd/slurm/spec":         {[]string{"stepd/slurm/wire", "stepd/slurmconf", "stepd/srunopt", "stepd/step"}, "makes a Spec of what slurmd says: pure"},
	"stepd/slurm/spawn":        {[]string{"stepd/internal/linux", "stepd/internal/quickjson", "stepd/slurm/spec", "stepd/slurm/wire", "stepd/slurmconf", "stepd/step", "stepd/step/launch"}, "steps and names that ranks have of srun: knows neither tasks nor slurmctld"},
	"stepd/slurm/keeper":       {[]string{"stepd/internal/linux"}, "starts the keeper: knows neither messages nor cgroups"},
	"stepd/slurm/pam":          {[]string{"stepd/internal/linux", "stepd/srunopt", "stepd/step/launch"}, "has a PAM session opened: knows no message"},
	"stepd/slurm/extern":       {[]string{"stepd/internal/linux", "stepd/proctrack", "stepd/slurm/x11"}, "what the extern step does for its job: knows no message"},
	"stepd/slurm/x11":          {[]string{"stepd/internal/linux", "stepd/internal/quickjson"}, "gives a job a display: knows no message"},
	"stepd/slurm/oci":          {[]string{"stepd/internal/linux", "stepd/internal/printable", "stepd/internal/rmtree", "stepd/slurmconf", "stepd/step/launch"}, "containers of tasks by the site's commands: knows neither messages nor cgroups, and runs as the user"},
	"stepd/slurm/gres":         {[]string{"stepd/slurm/wire", "stepd/step", "stepd/step/launch"}, "pure: which generic resources a step and its tasks have"},
	"stepd/slurm/place":        {[]string{"stepd/internal/linux", "stepd/proctrack", "stepd/proctrack/detect", "stepd/slurmconf", "stepd/step", "stepd/step/launch", "stepd/task/cgroup", "stepd/task/confine", "stepd/task/device"}, "the cgroups of slurmd's steps: knows neither messages nor sockets"},
	"stepd/slurm/stdio":        {[]string{"stepd/internal/linux", "stepd/slurm/wire", "stepd/step", "stepd/step/launch", "stepd/stepio/relay"}, "srun's streams: knows neither tasks nor messages; the relay names who holds a pipe"},
	"stepd/slurm/tree":         {[]string{"stepd/slurm/socket", "stepd/slurm/wire"}, "gathers the ends of a step's nodes: sends nothing"},
	"stepd/slurm/slurmstepd":   {[]string{"stepd/internal/lookup", "stepd/jobcontainer", "stepd/eventlog", "stepd/eventlog/archive", "stepd/internal/build", "stepd/internal/linux", "stepd/internal/nofile", "stepd/internal/stack", "stepd/internal/quickjson", "stepd/mpi", "stepd/proctrack", "stepd/slurm/check", "stepd/slurm/extern", "stepd/slurm/keeper", "stepd/slurm/munge", "stepd/slurm/oci", "stepd/slurm/pam", "stepd/slurm/peers", "stepd/slurm/place", "stepd/slurm/rpc", "stepd/slurm/socket", "stepd/slurm/spawn", "stepd/slurm/spec", "stepd/slurm/stdio", "stepd/slurm/tree", "stepd/slurm/wire", "stepd/slurm/x11", "stepd/slurmconf", "stepd/spank/jobscript", "stepd/srunopt", "stepd/step", "stepd/step/launch", "stepd/stepd/report", "stepd/stepd/wire", "stepd/task", "stepd/slurm/gres", "stepd/stepnet", "stepd/internal/wire", "stepd/task/confine", "stepd/task/device"}, "serves a step to slurmd, srun and slurmctld, and stays small: a step pays for every package"},
	"stepd/cmd/slurmstepd":     {[]string{"stepd/slurm/slurmstepd"}, "wires"},
	"stepd/slurmconf":          {[]string{"stepd/internal/nearest", "stepd/step", "stepd/srunopt"}, "the site's files; a node's resources are written as a request's are"},
	"stepd/node":               {[]string{"stepd/node/spool", "stepd/node/exchange", "stepd/node/health", "stepd/node/state", "stepd/node/selection", "stepd/internal/child", "stepd/internal/lookup", "stepd/node/scripts", "stepd/step", "stepd/api", "stepd/api/stepapi", "stepd/internal/linux", "stepd/srunopt", "stepd/eventlog", "stepd/step/launch"}, "knows mechanisms by interfaces"},
	"stepd/node/state":         {[]string{"stepd/node/store", "stepd/internal/linux", "stepd/step"}, "what a node keeps: records and their numbers; knows nothing that runs"},
	"stepd/node/exchange":      {[]string{"stepd/node/state", "stepd/api/stepapi", "stepd/step"}, "what a job's programs have for each other: knows neither steps nor their processes"},
	"stepd/node/health":        {[]string{"stepd/api", "stepd/internal/child", "stepd/node/scripts", "stepd/node/state", "stepd/step", "stepd/step/launch"}, "whether a node takes jobs, and why not: knows nothing that runs"},
	"stepd/node/spool":         {[]string{"stepd/api", "stepd/api/stepapi", "stepd/eventlog", "stepd/internal/linux", "stepd/internal/rmtree", "stepd/step"}, "a node's directories and what they have of each step: knows nothing that runs"},
	"stepd/node/store":         {[]string{"stepd/internal/linux"}, "keeps values by name, and knows none of them"},
	"stepd/internal/child":     {[]string{"stepd/step", "stepd/internal/linux", "stepd/internal/printable", "stepd/eventlog"}, "starts programs, and does not know what for"},
	"stepd/node/scripts":       {[]string{"stepd/internal/child", "stepd/internal/linux", "stepd/step", "stepd/api/stepapi", "stepd/internal/printable"}, "runs what a site runs around a job; what the node does about its result is node's"},
	"stepd/internal/lookup":    {[]string{"stepd/srunopt", "stepd/step"}, "answers who a user is: knows no step"},
	"stepd/node/serve":         {[]string{"stepd/api", "stepd/api/stepapi", "stepd/step", "stepd/internal/printable", "stepd/srunopt"}, "noded's API, who may do what: knows the node by the interfaces that it declares"},
	"stepd/node/place":         {[]string{"stepd/node", "stepd/step", "stepd/proctrack", "stepd/proctrack/detect", "stepd/slurmconf", "stepd/task/cgroup", "stepd/task/confine", "stepd/task/device", "stepd/internal/linux", "stepd/node/selection", "stepd/step/launch"}, "implements node.Tracker and node.Limits by mechanisms: what only noded pays for"},
	"stepd/node/selection":     {[]string{"stepd/step", "stepd/srunopt", "stepd/api"}, "plain data: chooses, and knows neither jobs' records nor steps' processes; the node document's lines are the API's"},
	"stepd/internal/pid1":      {[]string{"stepd/internal/linux"}, "noded as process 1: knows no step"},
	"stepd/node/fakestepd":     {[]string{"stepd/step", "stepd/api/stepapi", "stepd/srunopt", "stepd/eventlog"}, "a stepd for tests of noded"},
	"stepd/site":               {[]string{"stepd/internal/child", "stepd/internal/lookup", "stepd/node/spool", "stepd/api", "stepd/acct", "stepd/eventlog", "stepd/internal/build", "stepd/internal/linux", "stepd/internal/printable", "stepd/jobcontainer", "stepd/metrics", "stepd/mpi", "stepd/node", "stepd/node/scripts", "stepd/node/place", "stepd/node/selection", "stepd/node/store", "stepd/proctrack", "stepd/proctrack/detect", "stepd/slurmconf", "stepd/spank", "stepd/spank/lint", "stepd/srunopt", "stepd/step", "stepd/step/launch", "stepd/task", "stepd/task/affinity"}, "what the site's files mean for this node: it chooses noded's mechanisms, and so knows them all; what it previews is in documents of the API; it serves no request, and no socket or streams of a step"},
	"stepd/metrics":            {[]string{"stepd/step", "stepd/node", "stepd/eventlog"}, "counts what a node tells, for Prometheus: what only noded pays for"},
	"stepd/eventlog":           {[]string{"stepd/step", "stepd/internal/printable", "stepd/internal/quickjson", "stepd/step/launch"}, "lines of a step's event log, and what it looks like: vocabulary, beside step"},
	"stepd/eventlog/archive":   {[]string{"stepd/eventlog", "stepd/internal/linux", "stepd/internal/quickjson", "stepd/step"}, "what slurmstepd leaves for stepctl: files, and no daemon's"},
	"stepd/explain":            {[]string{"stepd/step", "stepd/internal/printable", "stepd/eventlog", "stepd/step/launch"}, "what records and events mean: what only stepctl pays for"},
	"stepd/cmd/noded":          {[]string{"stepd/..."}, "wires"},
	"stepd/stepd/report":       {[]string{"stepd/eventlog", "stepd/internal/linux", "stepd/step", "stepd/step/launch"}, "what a step's daemon reports with, whatever serves the step"},
	"stepd/stepd":              {[]string{"stepd/stepd/report", "stepd/stepd/wire", "stepd/step", "stepd/internal/quickjson", "stepd/task", "stepd/spank/jobscript", "stepd/mpi/spawn", "stepd/stepio/live", "stepd/stepio/relay", "stepd/api/stepapi", "stepd/internal/build", "stepd/internal/linux", "stepd/internal/stack", "stepd/eventlog", "stepd/step/launch"}, "serves a step to noded and its clients, and stays small: a step pays for every package"},
	"stepd/stepd/wire":         {[]string{"stepd/acct", "stepd/step", "stepd/task", "stepd/task/affinity", "stepd/task/cgroup", "stepd/task/oom", "stepd/spank", "stepd/proctrack", "stepd/mpi", "stepd/internal/linux", "stepd/step/launch", "stepd/task/device"}, "wires a step, whatever serves it: it knows no socket of noded's"},
	"stepd/cmd/stepd":          {[]string{"stepd/stepd"}, "wires"},
	"stepd/client":             {[]string{"stepd/client/options", "stepd/client/plugins", "stepd/client/terminal", "stepd/api", "stepd/api/stepapi", "stepd/explain", "stepd/internal/build", "stepd/internal/printable", "stepd/mpi", "stepd/spank", "stepd/step", "stepd/stepio", "stepd/stepio/replay", "stepd/srunopt", "stepd/eventlog"}, "a client's part in a step; prints no reports"},
	"stepd/client/options":     {[]string{"stepd/internal/manual", "stepd/internal/nearest", "stepd/client/plugins", "stepd/client/terminal", "stepd/internal/linux", "stepd/internal/nofile", "stepd/internal/printable", "stepd/slurmconf", "stepd/step", "stepd/stepio", "stepd/srunopt"}, "a command line becomes a request: noded is not asked"},
	"stepd/client/plugins":     {[]string{"stepd/client/terminal", "stepd/api", "stepd/internal/manual", "stepd/spank", "stepd/step", "stepd/step/launch", "stepd/srunopt"}, "plugins on the client's side: no verb is known"},
	"stepd/client/terminal":    {[]string{"stepd/internal/linux", "stepd/internal/printable", "stepd/step", "stepd/stepio/replay"}, "the user's terminal: neither noded nor options are known"},
	"stepd/client/report":      {[]string{"stepd/client", "stepd/client/options", "stepd/client/plugins", "stepd/client/terminal", "stepd/api", "stepd/explain", "stepd/internal/printable", "stepd/slurmconf", "stepd/spank", "stepd/spank/lint", "stepd/step/launch", "stepd/step", "stepd/eventlog", "stepd/eventlog/archive", "stepd/step/launch", "stepd/srunopt"}, "verbs that print"},
	"stepd/client/top":         {[]string{"stepd/client", "stepd/client/options", "stepd/client/report", "stepd/client/terminal", "stepd/api", "stepd/internal/printable", "stepd/step"}, "a report that is shown again and again"},
	"stepd/client/help":        {[]string{"stepd/api", "stepd/client", "stepd/client/options", "stepd/client/plugins", "stepd/client/terminal", "stepd/client/top", "stepd/docs", "stepd/internal/manual", "stepd/internal/printable"}, "describes the verbs, and runs none"},
	"stepd/cmd/stepctl":        {[]string{"stepd/client", "stepd/client/help", "stepd/client/options", "stepd/client/report", "stepd/client/terminal", "stepd/client/top", "stepd/internal/build", "stepd/internal/oneproc", "stepd/internal/stack"}, "wires"},
	"stepd/examples":           {[]string{"stepd/internal/testkit"}, "tests of the examples"},
	"stepd/integration":        {[]string{"stepd/internal/testkit"}, "black box: built programs only"},
	"stepd/integration/bench":  {nil, "black box: built programs only"},
	// Not a test, but a program that tests run: a site's controller needs no more than this.
	"stepd/integration/controller": {[]string{"stepd/api", "stepd/step"}, "a controller is written on the importable client"},

	// What every program may use that shows what others have written.
	"stepd/internal/rmtree":    {[]string{"stepd/internal/printable"}, "removes what users have made: knows no job"},
	"stepd/internal/printable": {nil, "one line, that moves no cursor: standard library only"},
	"stepd/internal/nearest":   {nil, "what a misspelt word was meant to be: standard library only"},

	// What runs and judges tests.
	"stepd/internal/testkit/gate":     {nil, "reads go test's records"},
	"stepd/integration/mpisuite":      {[]string{"stepd/integration/slurm/cluster"}, "MPICH's own suite on the built programs"},
	"stepd/integration/slurm":         {nil, "black box: the built slurmstepd below Slurm's own slurmd"},
	"stepd/integration/slurm/bench":   {[]string{"stepd/integration/slurm/cluster"}, "both step daemons in turns"},
	"stepd/integration/slurm/run":     {[]string{"stepd/integration/slurm/cluster"}, "a shell command in a private Slurm"},
	"stepd/integration/slurm/cluster": {nil, "a private Slurm: Debian's packages and nothing of ours"},
	"stepd/integration/slurm/tee":     {nil, "stands between slurmd and a step daemon: it knows neither's words"},
	"stepd/integration/slurm/demo":    {[]string{"stepd/integration/slurm/cluster"}, "built programs, and a private Slurm"},
	"stepd/integration/vm":            {[]string{"stepd/integration/slurm/cluster"}, "boots the guest; knows the tests by their files, and takes the images of Slurm there"},
	"stepd/integration/vm/guest":      {[]string{"stepd/internal/testkit"}, "black box: the installed programs only"},
}

type pkg struct {
	ImportPath string
	Imports    []string
}

func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-json=ImportPath,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	seen := map[string]bool{}
	for dec.More() {
		var p pkg
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.ImportPath == "stepd" {
			continue
		}
		seen[p.ImportPath] = true
		rule, ok := importRules[p.ImportPath]
		if !ok {
			t.Errorf("%s has no import rule: add it to this table with its reason", p.ImportPath)
			continue
		}
		for _, imp := range p.Imports {
			if imp == "C" {
				t.Errorf("%s imports \"C\": C lives in programs of its own (ADR 0001)", p.ImportPath)
			}
			if strings.HasPrefix(imp, "stepd/") && !slices.Contains(rule.may, imp) && !slices.Contains(rule.may, "stepd/...") {
				t.Errorf("%s imports %s: not allowed (%s)", p.ImportPath, imp, rule.why)
			}
		}
	}
	for path := range importRules {
		if !seen[path] {
			t.Errorf("the table names %s, which is no package any more", path)
		}
	}
}

// What stepd links is paid for once a step, and what stepctl links once a command: the heavy
// packages that noded uses must not come in by the back door.
func TestProgramsStaySmall(t *testing.T) {
	both := []string{"google.golang.org/", "go.etcd.io/", "github.com/cilium/", "github.com/godbus/", "net/http", "github.com/prometheus/", "crypto/tls", "crypto/x509"}
	for program, heavy := range map[string][]string{
		"stepd":      append([]string{"github.com/spf13/", "debug/elf"}, both...), // 0.6 ms of start-up is TLS's alone
		"slurmstepd": append([]string{"github.com/spf13/", "debug/elf"}, both...),
		"stepctl":    both,
	} {
		out, err := exec.Command("go", "list", "-deps", "./cmd/"+program).Output()
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		for _, dep := range strings.Fields(string(out)) {
			if slices.ContainsFunc(heavy, func(prefix string) bool { return strings.HasPrefix(dep, prefix) }) {
				t.Errorf("%s links %s", program, dep)
			}
		}
	}
}
