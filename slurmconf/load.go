package slurmconf

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Load reads slurm.conf at path and the files beside it. hostname is this
// machine's name, full or short; it finds the node's own line. With path ""
// nothing is read and every value is its default, which is a valid
// configuration.
//
// The problems are all that was found, file by file; where one is an error, the
// configuration is not the one that the site wanted. Load itself fails only
// where a file cannot be read at all: then there is no configuration.
func Load(path, hostname string) (*Config, []Problem, error) {
	return LoadAs(path, hostname, "")
}

// LoadAs is Load where the caller gives the node's name: its line is
// NodeName=node alone. With "" it is Load. mpiTypes are what MpiDefault may be; none
// stands for the types that Slurm's documentation has.
func LoadAs(path, hostname, node string, mpiTypes ...string) (*Config, []Problem, error) {
	if len(mpiTypes) == 0 {
		mpiTypes = []string{"none", "pmi2", "pmix"}
	}
	l := &loader{mpiTypes: mpiTypes, cfg: defaults(cmp.Or(node, hostname)), hostname: hostname, nodeName: node, nodeSeen: map[string]statement{}, told: map[string]statement{}}
	if node != "" {
		l.cfg.Node.Name = node
	}
	if path == "" {
		return l.cfg, nil, nil
	}
	file, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	l.cfg.File, l.dir = file, filepath.Dir(file)
	l.cfg.PlugStackConfig = filepath.Join(l.dir, "plugstack.conf")
	stmts, err := l.read(file)
	if err != nil {
		return nil, l.probs.all(), fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	l.slurmFile(stmts)
	if err := l.besideFiles(); err != nil {
		return nil, l.probs.all(), err
	}
	l.together()
	return l.cfg, l.probs.all(), nil
}

// loader is the state of one Load.
type loader struct {
	cfg      *Config
	hostname string
	mpiTypes []string
	nodeName string // as the caller gave it, "" if it did not
	dir      string // slurm.conf's
	probs    problems

	nodeFrom    statement // of this node's line, if there is one
	nodeDefault Node
	nodes       []nodeLine
	nodeSeen    map[string]statement
	partDefault partitionLine
	parts       []partitionLine
	part        *partitionLine // the line of Config.Partition
	memoryFrom  statement      // part's line, where it has memory keys

	// told are the lines of plain keys, in lower case; a later one wins.
	told map[string]statement
}

func (l *loader) read(file string) ([]statement, error) {
	r := &reader{probs: &l.probs, dir: l.dir}
	if l.cfg.File != file { // beside slurm.conf, which may name the cluster
		r.cluster = l.cfg.ClusterName
	}
	err := r.read(file)
	return r.out, err
}

// slurmFile applies slurm.conf: the nodes first, since other values have the
// node's name in them.
func (l *loader) slurmFile(stmts []statement) {
	var plain []statement
	for _, s := range stmts {
		switch first := s.pairs[0]; {
		case first.is("NodeName"):
			l.nodeLine(s)
		case first.is("PartitionName"):
			l.partitionLine(s)
		case isForeignLine(first.key):
			l.probs.at(s, SeverityIgnored, "", "%s does not concern a node daemon", first.key)
		default:
			plain = append(plain, s)
		}
	}
	l.chooseNode()
	l.choosePartition()
	l.plainKeys(plain, l.slurmKeys(), SeverityIgnored)
	l.exclude()
}

// besideFiles reads the files that may stand beside slurm.conf.
func (l *loader) besideFiles() error {
	for _, f := range []struct {
		name  string
		apply func(file string, stmts []statement)
	}{
		{"stepd.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, l.cfg.Stepd.keys(l.dir), SeverityError) }},
		{"cgroup.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, l.cfg.Cgroup.keys(), SeverityError) }},
		{"gres.conf", l.gresFile},
		{"job_container.conf", l.containerFile},
		{"mpi.conf", func(_ string, stmts []statement) { l.plainKeys(stmts, mpiKeys(&l.cfg.Mpi), SeverityError) }},
	} {
		file := filepath.Join(l.dir, f.name)
		stmts, err := l.read(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("cannot read configuration %q: %w", file, err)
		}
		f.apply(file, stmts)
	}
	return nil
}

// plainKeys applies a file of one KEY=VALUE a line.
func (l *loader) plainKeys(stmts []statement, keys keySet, unknown Severity) {
	seen := map[string]statement{}
	for _, s := range stmts {
		pairs := l.onePair(s)
		key := strings.ToLower(pairs[0].key)
		if first, dup := seen[key]; dup && keys[key] != nil && !severalTimes(key) {
			l.probs.at(s, SeverityWarning, "remove one of them", "%s was set at %s:%d already: this one counts", pairs[0].key, first.file, first.line)
		}
		seen[key] = s
		if keys[key] != nil {
			l.told[key] = s
		}
		l.set(s, pairs, keys, unknown)
	}
}

// onePair returns the first pair, and complains about others: Slurm's parser
// stops at them.
func (l *loader) onePair(s statement) []pair {
	if len(s.pairs) > 1 {
		l.probs.at(s, SeverityError, "write it on a line of its own", "cannot use %s behind %s", s.pairs[1].key, s.pairs[0].key)
	}
	return s.pairs[:1]
}

// set puts pairs into the fields of keys. unknown is the severity of a key
// that is not among them. It reports whether all values were taken.
func (l *loader) set(s statement, pairs []pair, keys keySet, unknown Severity) bool {
	taken := true
	for _, p := range pairs {
		set, ok := keys[strings.ToLower(p.key)]
		if !ok {
			l.unknownKey(s, p, keys, unknown)
			continue
		}
		if f := set(p.value); f != nil {
			l.probs.value(s, p, f)
			taken = taken && f.severity != SeverityError
		}
	}
	return taken
}

// unknownKey reports a key that is not read. In slurm.conf most of them are
// the controller's; one that is nearly a key of ours is a slip.
func (l *loader) unknownKey(s statement, p pair, keys keySet, sev Severity) {
	found := Problem{Severity: sev, File: s.file, Line: s.line}
	own := (&Stepd{}).keys(l.dir)[strings.ToLower(p.key)] != nil
	near := nearest(p.key, keys)
	switch {
	case own:
		found.Text = p.key + " is not a key of this file and is not read"
		found.Remedy = "move it to stepd.conf beside slurm.conf: a real slurmd stops at it here"
	case sev == SeverityError:
		found.Text = fmt.Sprintf("cannot use key %q: there is none of that name", p.key)
	case near != "":
		found.Severity = SeverityWarning
		found.Text = p.key + " is not a known key"
	default:
		found.Text = p.key + " does not concern a node daemon"
	}
	if near != "" && !own {
		found.Remedy = fmt.Sprintf("is %q meant?", near)
	}
	l.probs.add(found)
}
