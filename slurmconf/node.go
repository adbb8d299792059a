package slurmconf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"stepd/step"
)

// Node is one node of slurm.conf. A number that was not set is zero: the hardware's
// is meant.
type Node struct {
	Name string
	// CPUs is believed, above the hardware too. Where it is not
	// set but the topology is, it is Boards × sockets of a board × cores ×
	// threads.
	CPUs           int
	Boards         int
	Sockets        int // of one board; SocketsPerBoard is the same
	CoresPerSocket int
	ThreadsPerCore int
	// RealMemory and MemSpecLimit are in MiB (Slurm's "megabytes").
	RealMemory, MemSpecLimit uint64
	// CoreSpecCount is how many cores no job gets. CPUSpecList are CPUs that no job gets, nor
	// others of their cores, by Slurm's abstract numbers: sockets, cores and threads in their order.
	CoreSpecCount int
	CPUSpecList   []int
	// CpuBind is the default of --cpu-bind, as in TaskPluginParam; "" is not set.
	CpuBind string
	// Gres is what Gres= says, nil where it is not set; Config.Gres is what
	// comes of it.
	Gres []NodeGres
}

// NodeGres is one entry of a NodeName's Gres=: "gpu:a100:2".
type NodeGres struct {
	Name, Type string // Type "" is any
	// NoConsume: a request does not use it up.
	NoConsume bool
	Count     uint64
}

// hardMax bounds each number of the topology; their product stays an int.
const hardMax = 65535

// memoryMax bounds a size in MiB: its bytes stay an int64.
const memoryMax = 1<<43 - 1

func (n *Node) keys() keySet {
	cpus := count(&n.CPUs, 1, hardMax)
	sockets := count(&n.Sockets, 1, hardMax)
	return keySet{
		"cpus": cpus, "procs": cpus,
		"boards": count(&n.Boards, 1, hardMax), "sockets": sockets, "socketsperboard": sockets,
		"corespersocket": count(&n.CoresPerSocket, 1, hardMax),
		"threadspercore": count(&n.ThreadsPerCore, 1, hardMax),
		"realmemory":     count(&n.RealMemory, 1, memoryMax),
		"memspeclimit":   count(&n.MemSpecLimit, 0, memoryMax),
		"corespeccount":  count(&n.CoreSpecCount, 0, hardMax),
		"cpuspeclist":    parsed(&n.CPUSpecList, numberList),
		"gres":           parsed(&n.Gres, nodeGres),
		// The line's own, and what concerns the controller alone.
		"nodename": nothing, "nodehostname": nothing, "nodeaddr": nothing,
		"bcastaddr": nothing, "feature": nothing, "features": nothing, "state": nothing, "weight": nothing,
		"tmpdisk": nothing, "port": nothing, "reason": nothing, "cpubind": parsed(&n.CpuBind, cpuBind), "parameters": nothing,
		"restrictedcorespergpu": nothing, "suspendtime": nothing, "topology": nothing, "tresweights": nothing, "gresconf": nothing,
	}
}

// numberList reads "0-3,8", in any order.
func numberList(v string) (list []int, _ *flaw) {
	for part := range strings.SplitSeq(v, ",") {
		more, err := step.ParseCPUList(part)
		if err != nil || len(more) == 0 {
			return nil, wrong("write numbers such as 0-3,8", "%.40q is no range of numbers", part)
		}
		list = append(list, more...)
	}
	slices.Sort(list)
	return slices.Compact(list), nil
}

// nodeLine is a NodeName line with its lists expanded.
type nodeLine struct {
	from  statement
	node  Node
	names []string
	hosts []string // as many as names
}

func (l nodeLine) at(i int) Node {
	n := l.node
	n.Name = l.names[i]
	return n
}

// nodeLine reads one NodeName line. A line of NodeName=DEFAULT changes what
// the lines below it begin with.
func (l *loader) nodeLine(s statement) {
	node := l.nodeDefault
	l.set(s, s.pairs, node.keys(), SeverityIgnored)
	if strings.EqualFold(s.pairs[0].value, "DEFAULT") {
		l.nodeDefault = node
		return
	}
	if strings.EqualFold(s.pairs[0].value, "ALL") {
		l.probs.value(s, s.pairs[0], wrong("give the node another name", "the name is reserved"))
		return
	}
	node.CPUs = node.cpus()
	l.nodeTogether(s, &node)
	line := nodeLine{from: s, node: node}
	var ok bool
	if line.names, ok = l.hosts(s, s.pairs[0]); !ok {
		return
	}
	if len(l.nodeSeen)+len(line.names) > hostsMax {
		l.probs.at(s, SeverityError, "", "cannot take more than %d nodes", hostsMax)
		return
	}
	line.hosts = line.names
	for _, p := range s.pairs[1:] {
		if p.is("NodeHostname") {
			line.hosts = l.matching(s, p, line.names)
		}
	}
	for _, name := range line.names {
		if strings.ContainsAny(name, "/\"%\x7f") || name == "." || name == ".." {
			l.probs.value(s, s.pairs[0], wrong("write letters, digits, dots and dashes", "%q is no name for a node", name))
			return
		}
		if first, dup := l.nodeSeen[name]; dup {
			l.probs.at(s, SeverityError, "remove one of them", "cannot take node %q again: it is in %s:%d already", name, first.file, first.line)
			return
		}
	}
	for _, name := range line.names {
		l.nodeSeen[name] = s
	}
	l.nodes = append(l.nodes, line)
}

// cpus is CPUs, or what the topology makes of it, or 0 where nothing is set.
func (n *Node) cpus() int {
	if n.CPUs > 0 || n.Boards+n.Sockets+n.CoresPerSocket+n.ThreadsPerCore == 0 {
		return n.CPUs
	}
	product := 1
	for _, x := range []int{n.Boards, n.Sockets, n.CoresPerSocket, n.ThreadsPerCore} {
		product = min(product*max(x, 1), hardMax)
	}
	return product
}

// hosts expands a list of names in a value.
func (l *loader) hosts(s statement, p pair) ([]string, bool) {
	names, err := ExpandHosts(p.value)
	if err == nil && len(names) == 0 {
		err = errors.New("the list is empty")
	}
	if err != nil {
		l.probs.value(s, p, wrong("write a list such as n[1-3,5],m", "%v", err))
	}
	return names, err == nil
}

// matching expands a list that must be as long as names; one name alone stands
// for all.
func (l *loader) matching(s statement, p pair, names []string) []string {
	list, ok := l.hosts(s, p)
	switch {
	case !ok:
		return names
	case len(list) == 1:
		return slices.Repeat(list, len(names))
	case len(list) != len(names):
		l.probs.value(s, p, wrong("name as many as NodeName does", "%d names for %d nodes", len(list), len(names)))
		return names
	}
	return list
}

// chooseNode finds this host among the nodes: by NodeName, then by
// NodeHostname, each with the host's full and short name. The only node of a
// file is this host whatever its name: a file for one machine is often written
// elsewhere.
func (l *loader) chooseNode() {
	if l.nodeName != "" {
		l.chooseNamed()
		return
	}
	if len(l.nodes) == 0 {
		return
	}
	for _, list := range []func(nodeLine) []string{
		func(n nodeLine) []string { return n.names },
		func(n nodeLine) []string { return n.hosts },
	} {
		if l.take(l.hostname, list) || l.take(shortName(l.hostname), list) {
			return
		}
	}
	first := l.nodes[0]
	if len(l.nodeSeen) == 1 {
		l.cfg.Node, l.nodeFrom = first.at(0), first.from
		l.probs.at(first.from, SeverityWarning, "", "no node is named %q: taking %q, the only one, for this host", l.hostname, first.names[0])
		return
	}
	l.probs.at(statement{file: l.cfg.File}, SeverityError, fmt.Sprintf("add NodeName=%s, or NodeHostname=%s to a node", shortName(l.hostname), l.hostname),
		"cannot find this host %q among %d nodes", l.hostname, len(l.nodeSeen))
}

// take takes the first node that has the name in its list, and reports whether there is one.
func (l *loader) take(name string, list func(nodeLine) []string) bool {
	for _, line := range l.nodes {
		if i := slices.Index(list(line), name); i >= 0 {
			l.cfg.Node, l.nodeFrom = line.at(i), line.from
			return true
		}
	}
	return false
}

// chooseNamed takes the line of the node that the caller named.
func (l *loader) chooseNamed() {
	if l.take(l.nodeName, func(n nodeLine) []string { return n.names }) {
		return
	}
	l.probs.at(statement{file: l.cfg.File}, SeverityError, "add NodeName="+l.nodeName+", or give noded another --node-name", "cannot find node %q among %d nodes", l.nodeName, len(l.nodeSeen))
}

// partitionLine is what a node daemon wants of a PartitionName line.
type partitionLine struct {
	from      statement
	name      string
	nodes     string
	isDefault bool
	// Its own memory keys, over the site's; nil is not set.
	defPerCPU, defPerNode, maxPerCPU, maxPerNode *uint64
	cpuBind                                      string
}

func (p *partitionLine) keys() keySet {
	return keySet{
		"partitionname": nothing, "nodes": hostList(&p.nodes), "default": boolean(&p.isDefault), "cpubind": parsed(&p.cpuBind, cpuBind),
		"defmempercpu": optional(&p.defPerCPU, memory), "defmempernode": optional(&p.defPerNode, memory),
		"maxmempercpu": optional(&p.maxPerCPU, memory), "maxmempernode": optional(&p.maxPerNode, memory),
	}
}

// partitionLine reads one PartitionName line; all other keys of it are the
// controller's.
func (l *loader) partitionLine(s statement) {
	part := l.partDefault
	keys := part.keys()
	for _, p := range s.pairs[1:] {
		if set := keys[strings.ToLower(p.key)]; set != nil {
			if f := set(p.value); f != nil {
				l.probs.value(s, p, f)
			}
		}
	}
	l.excludeIn(s)
	if strings.EqualFold(s.pairs[0].value, "DEFAULT") {
		l.partDefault = part
		return
	}
	part.name, part.from = s.pairs[0].value, s
	l.parts = append(l.parts, part)
}

// choosePartition names the partition that a step of this node belongs to
// unless the request names another.
func (l *loader) choosePartition() {
	for _, p := range l.parts {
		if (l.cfg.Partition == "" || p.isDefault) && l.holds(p) {
			l.cfg.Partition, l.part = p.name, &p
		}
	}
}

// holds reports whether this node is in the partition. A list that cannot be
// expanded, as one with the name of a NodeSet in it, holds what it names.
func (l *loader) holds(p partitionLine) bool {
	if strings.EqualFold(p.nodes, "ALL") {
		return true
	}
	names, err := ExpandHosts(p.nodes)
	return err == nil && slices.Contains(names, l.cfg.Node.Name)
}

// defaultBinding puts CpuBind of the node or of its partition over the site's.
func (l *loader) defaultBinding() {
	bind := l.cfg.Node.CpuBind
	if bind == "" && l.part != nil {
		bind = l.part.cpuBind
	}
	if bind != "" {
		l.cfg.TaskPluginParam.Bind = bind
	}
}

// partitionMemory puts the partition's memory keys over the site's; one of a
// pair that excludes the other takes its place.
func (l *loader) partitionMemory() {
	c, p := l.cfg, l.part
	if p == nil {
		return
	}
	for _, k := range []struct{ perCPU, perNode, cpu, node *uint64 }{
		{p.defPerCPU, p.defPerNode, &c.DefMemPerCPU, &c.DefMemPerNode},
		{p.maxPerCPU, p.maxPerNode, &c.MaxMemPerCPU, &c.MaxMemPerNode},
	} {
		switch {
		case k.perCPU != nil:
			*k.cpu, *k.node = *k.perCPU, 0
		case k.perNode != nil:
			*k.cpu, *k.node = 0, *k.perNode
		default:
			continue
		}
		l.memoryFrom = p.from
	}
}

// Limits of a host list. hostsMax is Slurm's own for one range.
const (
	hostsMax    = 65536   // names of one list
	hostNameMax = 255     // bytes of one name
	hostListMax = 1 << 20 // bytes of the list
	rangeDigits = 18      // of a number in a range: fits an int64
	bracketsMax = 5       // brackets in one item: the dimensions of Slurm's largest torus
)

// ExpandHosts writes out a host list: "n[1-3,5],m" is n1 n2 n3 n5 m. Items are
// parted by commas or blanks. Numbers keep the width of a range's first one:
// "n[08-10]" is n08 n09 n10. Several brackets in one item give all
// combinations, and text may follow a bracket (which Slurm refuses). The order
// and repeated names are kept. More than 65,536 names are an error.
func ExpandHosts(list string) ([]string, error) {
	if len(list) > hostListMax {
		return nil, fmt.Errorf("cannot expand host list of %d bytes: the limit is %d", len(list), hostListMax)
	}
	var out []string
	for rest := list; rest != ""; {
		item, left, err := cutItem(rest)
		if err != nil {
			return nil, fmt.Errorf("cannot expand host list %.80q: %w", list, err)
		}
		rest = left
		if item == "" {
			continue
		}
		if out, err = expandItem(out, item); err != nil {
			return nil, fmt.Errorf("cannot expand host list %.80q: %w", list, err)
		}
	}
	return out, nil
}

// cutItem cuts at the first comma or blank outside brackets.
func cutItem(s string) (item, rest string, err error) {
	open := false
	for i := range len(s) {
		switch c := s[i]; {
		case c == '[' && open:
			return "", "", errors.New("a bracket within a bracket")
		case c == '[':
			open = true
		case c == ']' && !open:
			return "", "", errors.New("a closing bracket without an opening one")
		case c == ']':
			open = false
		case !open && (c == ',' || strings.IndexByte(blanks, c) >= 0):
			return s[:i], s[i+1:], nil
		}
	}
	if open {
		return "", "", errors.New("a bracket is not closed")
	}
	return s, "", nil
}

// expandItem appends the names of one item to out.
func expandItem(out []string, item string) ([]string, error) {
	names := []string{""}
	if strings.Count(item, "[") > bracketsMax {
		return nil, fmt.Errorf("more than %d brackets in %.40q", bracketsMax, item)
	}
	for rest := item; rest != ""; {
		head, after, bracket := strings.Cut(rest, "[")
		numbers := []string{""}
		rest = ""
		if bracket {
			inside, tail, _ := strings.Cut(after, "]")
			var err error
			if numbers, err = expandRanges(inside); err != nil {
				return nil, err
			}
			rest = tail
		}
		// Before the product is made: "[1-9][1-9]…" would double with each byte.
		if len(out)+len(names)*len(numbers) > hostsMax {
			return nil, fmt.Errorf("more than %d names", hostsMax)
		}
		if len(names[0])+len(head)+rangeDigits > hostNameMax {
			return nil, fmt.Errorf("a name has more than %d bytes", hostNameMax-rangeDigits)
		}
		names = product(names, head, numbers)
	}
	return append(out, names...), nil
}

func product(names []string, head string, numbers []string) []string {
	out := make([]string, 0, len(names)*len(numbers))
	for _, n := range names {
		for _, x := range numbers {
			out = append(out, n+head+x)
		}
	}
	return out
}

// expandRanges writes out what stands in one bracket: "1-3,5".
func expandRanges(s string) ([]string, error) {
	var out []string
	for part := range strings.SplitSeq(s, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := rangeNumber(lo)
		last, err2 := rangeNumber(hi)
		if err := errors.Join(err1, err2); err != nil || last < first {
			return nil, fmt.Errorf("%.40q is no range of numbers", part)
		}
		if last-first >= uint64(hostsMax-len(out)) {
			return nil, fmt.Errorf("more than %d names", hostsMax)
		}
		for n := first; n <= last; n++ {
			out = append(out, fmt.Sprintf("%0*d", len(lo), n))
		}
	}
	return out, nil
}

func rangeNumber(s string) (uint64, error) {
	if len(s) > rangeDigits {
		return 0, errors.New("too many digits")
	}
	return strconv.ParseUint(s, 10, 64)
}

// CompressHosts is the short form of names, as Slurm writes it:
// "n[1-3,5],m". The order and repeated names are kept, so that ExpandHosts
// gives the same names back.
func CompressHosts(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		j := sameHead(names, i)
		if j == i+1 {
			out = append(out, names[i])
		} else {
			head, _ := splitNumber(names[i])
			out = append(out, head+"["+ranges(names[i:j])+"]")
		}
		i = j
	}
	return strings.Join(out, ",")
}

// sameHead returns the end of the run of names from i on that differ in their
// number alone.
func sameHead(names []string, i int) int {
	head, number := splitNumber(names[i])
	j := i + 1
	for ; number != "" && j < len(names); j++ {
		if h, n := splitNumber(names[j]); h != head || n == "" {
			break
		}
	}
	return j
}

// splitNumber cuts the digits at a name's end off; a number too long for a
// range counts as text.
func splitNumber(name string) (head, number string) {
	n := len(name)
	for n > 0 && name[n-1] >= '0' && name[n-1] <= '9' {
		n--
	}
	if len(name)-n > rangeDigits {
		return name, ""
	}
	return name[:n], name[n:]
}

// ranges are the numbers of names of one head: "1-3,5".
func ranges(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		_, text := splitNumber(names[i])
		first, _ := strconv.ParseUint(text, 10, 64)
		width, j := len(text), i+1
		for ; j < len(names); j++ {
			if _, n := splitNumber(names[j]); n != fmt.Sprintf("%0*d", width, first+uint64(j-i)) {
				break
			}
		}
		if j > i+1 {
			_, last := splitNumber(names[j-1])
			text += "-" + last
		}
		out = append(out, text)
		i = j
	}
	return strings.Join(out, ",")
}
