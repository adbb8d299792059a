package slurm

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"stepd/integration/slurm/cluster"
	"stepd/internal/testkit"
)

var record = flag.Bool("record-select", false, "write what Slurm's select plugins give into the table of node/selection")

// selectTable has requests and what Slurm gave: package selection's test compares its own choice with
// it. A line is: site, requests that are met before (parted by " + "), request, answer; and where our
// answer differs by intent, that one and the reason.
const selectTable = "../../node/selection/testdata/slurm.tsv"

// selectSites are the nodes of the table: a line of slurm.conf, and the node's CPUs.
var selectSites = map[string][2]string{
	"cpus":   {"SelectTypeParameters=CR_CPU_Memory", "CPUs=16"},
	"cpu":    {"SelectTypeParameters=CR_CPU_Memory", selectCores},
	"core":   {"SelectTypeParameters=CR_Core_Memory", selectCores},
	"socket": {"SelectTypeParameters=CR_Socket_Memory", selectCores},
	"one":    {"SelectTypeParameters=CR_Core_Memory,CR_ONE_TASK_PER_CORE", selectCores},
	"linear": {"SelectType=select/linear\nSelectTypeParameters=CR_Memory", selectCores},
	"spec":   {"SelectTypeParameters=CR_Core_Memory", selectCores + " CoreSpecCount=2 MemSpecLimit=100"},
}

const selectCores = "Sockets=2 CoresPerSocket=4 ThreadsPerCore=2"

// selectNode is each site. Its partition shares no CPUs.
const selectNode = "%s\nDefMemPerCPU=10\nGresTypes=gpu\nNodeName=" + cluster.Node + " NodeAddr=10.77.0.1 %s RealMemory=1000 State=UNKNOWN Gres=gpu:2\n" +
	"PartitionName=x Nodes=" + cluster.Node + " MaxTime=INFINITE State=UP OverSubscribe=NO\n"

// selectScript asks for what each line of its input names, and prints for each what srun --test-only
// says of the last request, now, later or never, and what salloc got.
const selectScript = `
while IFS= read -r line; do
	rest="$line + "
	while [ -n "$rest" ]; do
		want=${rest%% + *}; rest=${rest#* + }
		[ -n "$rest" ] || when=$(srun --test-only -N1 -p x $want true 2>&1 </dev/null)
		said=$(salloc -Q -N1 -p x --immediate=1 --no-shell $want 2>&1 </dev/null)
	done
	case "$when" in
	*" to start at "*)
		at=${when#* to start at }
		if [ $(($(date -d ${at%% *} +%s) - $(date +%s))) -gt 60 ]; then when=later; else when=now; fi
		;;
	*"configuration is not available"*) when=never ;;
	*) when=$(echo "$when" | tail -n1) ;;
	esac
	printf '%s\t' "$when"
	case "$said" in
	*"configuration is not available"* | *"partition configuration not available"*) echo never ;;
	*"are busy"* | *"execution impossible"*) echo busy ;;
	?*) echo "$said" | tail -n1 ;;
	*)
		scontrol -o -d show job | sort -t= -k2n | tail -n1 | sed -En 's/.* CPU_IDs=([^ ]*) Mem=([^ ]*) GRES=([^ ]*).*/CPUs \1, \2 MB \3/; s/gpu:0.IDX:.//; s/ *$//; p'
		;;
	esac
	scancel -u root
	while squeue -h | grep -q .; do sleep 0.05; done
done
`

// TestRootSelectRecord: what Slurm's select plugins give is what the table of node/selection has of
// them. With -record-select it writes that.
func TestRootSelectRecord(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	lines, rows := readTable(t, selectTable)
	for name, at := range rows {
		t.Run(name, func(t *testing.T) {
			conf, ok := selectSites[name]
			if !ok {
				t.Fatalf("no such site %q", name)
			}
			answers := askSelect(t, conf, selectScript, lines, at)
			for k, i := range at {
				fields := append(strings.Split(lines[i], "\t"), "", "", "")
				when, got, _ := strings.Cut(answers[k], "\t")
				if fields[3] != got && !*record {
					t.Errorf("%s after %q: Slurm gives %q, the table has %q", fields[2], fields[1], got, fields[3])
				}
				if want := whenOf(got); when != want {
					t.Errorf("%s after %q: srun --test-only says %q, want %q since salloc gets %q", fields[2], fields[1], when, want, got)
				}
				fields[3] = got
				lines[i] = strings.TrimRight(strings.Join(fields, "\t"), "\t")
			}
		})
	}
	writeTable(t, selectTable, lines)
}

// readTable returns the lines of a table, and which of them each site has.
func readTable(t *testing.T, path string) (lines []string, rows map[string][]int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines, rows = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n"), make(map[string][]int)
	for i, line := range lines {
		if name, _, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "#") {
			rows[name] = append(rows[name], i)
		}
	}
	return lines, rows
}

// writeTable writes what was recorded.
func writeTable(t *testing.T, path string, lines []string) {
	t.Helper()
	if *record && !t.Failed() {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// affinityTable has requests and the CPUs that their tasks had under Slurm. A line is as in selectTable.
const affinityTable = "../../node/selection/testdata/affinity.tsv"

// affinityScript asks for what each line of its input names, and prints the CPUs of the tasks of the
// last request.
const affinityScript = `
while IFS= read -r line; do
	rest="$line + "
	while [ -n "$rest" ]; do
		want=${rest%% + *}; rest=${rest#* + }
		[ -z "$rest" ] || salloc -Q -N1 -p x --immediate=1 --no-shell $want >/dev/null 2>&1 </dev/null
	done
	said=$(srun -Q -N1 -p x --immediate=1 $want sh -c 'echo $SLURM_PROCID:$(sed -n "s/^Cpus_allowed_list:[[:space:]]*//p" /proc/self/status)' 2>&1 </dev/null | sort | tr '\n' ' ')
	case "$said" in
	*"are busy"* | *"execution impossible"*) echo busy ;;
	*"Unable to satisfy cpu bind request"*) echo refused ;;
	*) echo $said ;;
	esac
	scancel -u root
	while squeue -h | grep -q .; do sleep 0.05; done
done
`

// TestRootSelectAffinity: the tasks' CPUs under Slurm are what the table of node/selection has of them.
// With -record-select it writes that.
func TestRootSelectAffinity(t *testing.T) {
	t.Parallel()
	testkit.RequireRoot(t)
	lines, rows := readTable(t, affinityTable)
	for name, at := range rows {
		t.Run(name, func(t *testing.T) {
			conf := "SelectTypeParameters=" + name
			if name == "linear" {
				conf = "SelectType=select/linear\nSelectTypeParameters=CR_Memory"
			}
			answers := askSelect(t, [2]string{conf + "\nTaskPlugin=task/affinity", "Sockets=1 CoresPerSocket=2 ThreadsPerCore=1"}, affinityScript, lines, at)
			for k, i := range at {
				fields := strings.Split(lines[i], "\t")
				if fields[3] != answers[k] && !*record {
					t.Errorf("%s after %q: Slurm's tasks have %q, the table has %q", fields[2], fields[1], answers[k], fields[3])
				}
				fields[3] = answers[k]
				lines[i] = strings.Join(fields, "\t")
			}
		})
	}
	writeTable(t, affinityTable, lines)
}

// whenOf is the answer of stepctl's --test-only that belongs to an answer of the table.
func whenOf(answer string) string {
	switch answer {
	case "busy":
		return "later"
	case "never":
		return "never"
	}
	return "now"
}

// askSelect asks a site for what its rows name: conf is as in selectSites.
func askSelect(t *testing.T, conf [2]string, script string, lines []string, at []int) []string {
	c, err := cluster.Start(t.Context(), cluster.Site{
		Release: "22.05", Cache: cache(), Conf: fmt.Sprintf(selectNode, conf[0], conf[1]), Devices: []string{"gpu0", "gpu1"},
		Files: map[string]string{"gres.conf": "AutoDetect=off\nName=gpu File=DIR/gpu0 Cores=4-7\nName=gpu File=DIR/gpu1 Cores=0-3\n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	}()
	var in strings.Builder
	for _, i := range at {
		fields := strings.Split(lines[i], "\t")
		fmt.Fprintln(&in, strings.Join(slices.DeleteFunc([]string{fields[1], fields[2]}, func(s string) bool { return s == "-" }), " + "))
	}
	cmd := c.Command(t.Context(), "root", "sh", "-c", script)
	cmd.Stdin = strings.NewReader(in.String())
	out, err := cmd.CombinedOutput()
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if err != nil || len(answers) != len(at) {
		t.Fatalf("%v: %d answers to %d requests: %s", err, len(answers), len(at), out)
	}
	return answers
}
