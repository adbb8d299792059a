package pmix

import (
	"fmt"
	"strconv"
	"strings"

	"stepd/step"
)

// Keys of the PMIx standard that describe a job.
const (
	keyJobID              = "pmix.jobid"
	keyNspace             = "pmix.nspace"
	keyUnivSize           = "pmix.univ.size"
	keyJobSize            = "pmix.job.size"
	keyMaxProcs           = "pmix.max.size"
	keyNumApps            = "pmix.job.napps"
	keyNumNodes           = "pmix.num.nodes"
	keyLocalSize          = "pmix.local.size"
	keyNodeSize           = "pmix.node.size"
	keyLocalPeers         = "pmix.lpeers"
	keyLocalLdr           = "pmix.lldr"
	keyNodeMap            = "pmix.nmap"
	keyProcMap            = "pmix.pmap"
	keyANLMap             = "pmix.anlmap"
	keyAppSize            = "pmix.app.size"
	keyProcData           = "pmix.pdata"
	keyRank               = "pmix.rank"
	keyGlobalRank         = "pmix.grank"
	keyAppNum             = "pmix.appnum"
	keyAppRank            = "pmix.apprank"
	keyAppLdr             = "pmix.aldr"
	keyLocalRank          = "pmix.lrank"
	keyNodeRank           = "pmix.nrank"
	keyNodeID             = "pmix.nodeid"
	keyHostname           = "pmix.hname"
	keySpawned            = "pmix.spawned"
	keyParentID           = "pmix.parent"
	keyNodeOversubscribed = "pmix.ndosub"
)

// Nspace is the name of a step's namespace, as Slurm's plugin makes it.
func Nspace(id step.ID) string { return fmt.Sprintf("%s%d.%d", nspacePrefix, id.Job, id.Step) }

// nspacePrefix begins the names of all steps.
const nspacePrefix = "slurm.pmix."

// parseNspace is the step of a namespace; ok is false for another's.
func parseNspace(s string) (id step.ID, ok bool) {
	job, number, found := strings.Cut(strings.TrimPrefix(s, nspacePrefix), ".")
	j, err1 := strconv.ParseUint(job, 10, 32)
	n, err2 := strconv.ParseUint(number, 10, 32)
	id = step.ID{Job: uint32(j), Step: uint32(n)}
	return id, found && err1 == nil && err2 == nil && Nspace(id) == s
}

// world is where the ranks of a step are.
type world struct {
	nspace string
	size   int
	hosts  []string // by node id
	ranks  [][]int  // by node id, ascending
	node   []int    // node id by rank
	local  []int    // place on its node by rank
	apps   []int    // tasks of each command
	cpus   int      // of this node, that the step has; 0 is unknown
	parent *proc    // rank 0 of the step that has spawned it, if one has
}

func newWorld(s *step.Spec) *world {
	w := &world{nspace: Nspace(s.ID), size: s.NTasks, cpus: s.NCPUs}
	if s.Layout != nil {
		w.place(s.Layout.Nodes)
	} else {
		w.place([]step.LayoutNode{{Name: s.NodeName, Ranks: step.FormatCPUList(s.LocalRanks())}})
	}
	for i := range s.Apps {
		w.apps = append(w.apps, s.Apps[i].NTasks)
	}
	if len(w.apps) == 0 {
		w.apps = []int{s.NTasks}
	}
	if s.Parent != nil {
		w.parent = &proc{Nspace(*s.Parent), 0}
	}
	return w
}

// place finds each rank's node, and its place there. Layout.Check has refused bad lists.
func (w *world) place(nodes []step.LayoutNode) {
	w.node, w.local = make([]int, w.size), make([]int, w.size)
	for node, n := range nodes {
		ranks, _ := step.ParseCPUList(n.Ranks)
		w.hosts, w.ranks = append(w.hosts, n.Name), append(w.ranks, ranks)
		for i, r := range ranks {
			if r < w.size {
				w.node[r], w.local[r] = node, i
			}
		}
	}
}

// infos describes the step to the library of one of its nodes, or, with here -1,
// of a node that has none of its ranks.
func (w *world) infos(here int) []info {
	all := []info{
		kv(keyJobID, text(w.nspace)),
		kv(keyUnivSize, number32(w.size)),
		kv(keyJobSize, number32(w.size)),
		kv(keyMaxProcs, number32(w.size)),
		kv(keyNumApps, number32(len(w.apps))),
		kv(keyNumNodes, number32(len(w.hosts))),
		// pmixhost puts both into the form that its library wants.
		kv(keyNodeMap, text(strings.Join(w.hosts, ","))),
		kv(keyProcMap, text(w.procMap())),
		kv(keyANLMap, text(w.mapping())),
		kv(keySpawned, boolean(w.parent != nil)),
	}
	if w.parent != nil {
		all = append(all, kv(keyParentID, procOf(*w.parent)))
	}
	if here >= 0 && len(w.ranks[here]) > 0 {
		ranks := w.ranks[here]
		all = append(all,
			kv(keyLocalSize, number32(len(ranks))),
			kv(keyNodeSize, number32(len(ranks))),
			kv(keyLocalPeers, text(commas(ranks))),
			kv(keyLocalLdr, rankOf(uint32(ranks[0]))),
			kv(keyNodeOversubscribed, boolean(w.cpus > 0 && len(ranks) > w.cpus)))
	}
	first := 0
	for app, n := range w.apps {
		for rank := first; rank < first+n && rank < w.size; rank++ {
			all = append(all, kv(keyProcData, infosOf(w.procData(rank, app, first, n)...)))
		}
		first += n
	}
	return all
}

func (w *world) procData(rank, app, first, size int) []info {
	return []info{
		kv(keyRank, rankOf(uint32(rank))),
		kv(keyGlobalRank, rankOf(uint32(rank))),
		kv(keyAppNum, number32(app)),
		kv(keyAppRank, rankOf(uint32(rank-first))),
		kv(keyAppLdr, rankOf(uint32(first))),
		kv(keyAppSize, number32(size)),
		kv(keyLocalRank, number16(w.local[rank])),
		kv(keyNodeRank, number16(w.local[rank])),
		kv(keyNodeID, number32(w.node[rank])),
		kv(keyHostname, text(w.hosts[w.node[rank]])),
		kv(keySpawned, boolean(w.parent != nil)),
	}
}

// procMap lists the ranks of each node: "0,1;2,3".
func (w *world) procMap() string {
	nodes := make([]string, len(w.ranks))
	for i, ranks := range w.ranks {
		nodes[i] = commas(ranks)
	}
	return strings.Join(nodes, ";")
}

func commas(ranks []int) string {
	var b strings.Builder
	for i, r := range ranks {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(r))
	}
	return b.String()
}

// mapping is PMI_process_mapping, which MPICH reads: blocks of (first node, nodes,
// ranks on each).
func (w *world) mapping() string {
	type block struct{ node, nodes, ranks int }
	var blocks []block
	for r := 0; r < w.size; {
		node, n := w.node[r], 0
		for r < w.size && w.node[r] == node {
			r, n = r+1, n+1
		}
		if last := len(blocks) - 1; last >= 0 && blocks[last].ranks == n && blocks[last].node+blocks[last].nodes == node {
			blocks[last].nodes++
			continue
		}
		blocks = append(blocks, block{node, 1, n})
	}
	var b strings.Builder
	b.WriteString("(vector")
	for _, k := range blocks {
		fmt.Fprintf(&b, ",(%d,%d,%d)", k.node, k.nodes, k.ranks)
	}
	return b.String() + ")"
}
