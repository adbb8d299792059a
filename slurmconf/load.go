package slurmconf

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"
)

// Load reads slurm.conf at path and the files beside it. hostname picks the
// node's own line. An empty path means that there is no file: the defaults,
// which are a valid configuration. Problems are all that is wrong or ignored;
// the error says that a file could not be read at all.
func Load(path, hostname string) (*Config, []Problem, error) {
	c := defaults(hostname)
	if path == "" {
		return c, nil, nil
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read configuration %q: %w", path, err)
	}
	c.File = path
	dir := filepath.Dir(path)
	c.PlugStackConfig = filepath.Join(dir, "plugstack.conf")
	l := loader{conf: c}
	if err := l.slurmConf(path); err != nil {
		return nil, nil, err
	}
	for _, f := range []struct {
		name string
		take func([]line)
	}{
		{"stepd.conf", l.ownKeys},
		{"job_container.conf", func(lines []line) { l.container(lines, hostname) }},
		{"cgroup.conf", func(lines []line) { c.Cgroup = asMap(lines) }},
		{"mpi.conf", func(lines []line) { c.Mpi = asMap(lines) }},
	} {
		lines, err := l.beside(filepath.Join(dir, f.name))
		if err != nil {
			return nil, nil, err
		}
		f.take(lines)
	}
	l.pickNode(hostname)
	return c, l.problems, nil
}

func defaults(hostname string) *Config {
	return &Config{
		ClusterName: "cluster", SlurmdDebug: "info", TmpFS: "/tmp",
		ProctrackType: "proctrack/cgroup", JobContainerType: "job_container/none", MpiDefault: "none",
		PrologEpilogTimeout: 65534 * time.Second,
		KillWait:            30 * time.Second, UnkillableStepTimeout: 60 * time.Second,
		PropagateResourceLimits: []string{"ALL"}, JobAcctGatherType: "jobacct_gather/none",
		MaxTasksPerNode: 65533, MinJobAge: 300 * time.Second,
		Own:  Own{KeepSteps: 1000},
		Node: Node{Name: hostname, Host: hostname, Addr: hostname},
	}
}

// loader is one Load.
type loader struct {
	conf     *Config
	problems []Problem
	template Node // NodeName=DEFAULT
}

// slurmConf reads the main file.
func (l *loader) slurmConf(path string) error {
	r := lineReader{base: filepath.Dir(path)}
	if err := r.read(path); err != nil {
		return err
	}
	l.problems = append(l.problems, r.problems...)
	for _, ln := range r.lines {
		if strings.EqualFold(ln.pairs[0].key, "NodeName") {
			l.nodeLine(ln)
			continue
		}
		if isTable(ln.pairs[0].key) {
			continue // lines of another daemon's tables, with keys of their own
		}
		for _, p := range ln.pairs {
			l.set(slurmKeys, ln, p)
		}
	}
	return nil
}

// isTable tells whether a line is one of a table that a node daemon leaves alone.
func isTable(key string) bool {
	for _, k := range []string{"PartitionName", "NodeSet", "DownNodes", "FrontendName", "SwitchName", "DowNnodes"} {
		if strings.EqualFold(key, k) {
			return true
		}
	}
	return false
}

// beside reads a file that need not be there.
func (l *loader) beside(path string) ([]line, error) {
	r := lineReader{base: filepath.Dir(path), cluster: l.conf.ClusterName}
	err := r.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	l.problems = append(l.problems, r.problems...)
	return r.lines, err
}

// set finds the key in a table and lets it take the value.
func (l *loader) set(table map[string]setter, ln line, p pair) {
	take, ok := table[strings.ToLower(p.key)]
	if !ok {
		l.problems = append(l.problems, Problem{Ignored, ln.file, ln.num, p.key, p.value, "does not concern a node daemon"})
		return
	}
	if err := take(l.conf, p.value); err != nil {
		l.mistake(ln, p, err.Error())
	}
}

func (l *loader) mistake(ln line, p pair, text string) {
	l.problems = append(l.problems, Problem{Mistake, ln.file, ln.num, p.key, p.value, text})
}

// ownKeys reads stepd.conf; an unknown key there is a mistake, since the file
// is ours alone.
func (l *loader) ownKeys(lines []line) {
	for _, ln := range lines {
		for _, p := range ln.pairs {
			if _, ok := ownKeys[strings.ToLower(p.key)]; !ok {
				l.mistake(ln, p, "stepd.conf knows no such key")
				continue
			}
			l.set(ownKeys, ln, p)
		}
	}
}

func asMap(lines []line) map[string]string {
	m := make(map[string]string)
	for _, ln := range lines {
		for _, p := range ln.pairs {
			m[strings.ToLower(p.key)] = p.value
		}
	}
	return m
}

// container reads job_container.conf: plain lines, and lines for some nodes
// that begin with NodeName, which win on those nodes.
func (l *loader) container(lines []line, hostname string) {
	for _, perNode := range []bool{false, true} {
		for _, ln := range lines {
			pairs := ln.pairs
			if strings.EqualFold(pairs[0].key, "NodeName") != perNode {
				continue
			}
			if perNode {
				names, err := ExpandHosts(pairs[0].value)
				if err != nil {
					l.mistake(ln, pairs[0], err.Error())
					continue
				}
				if !contains(names, hostname) {
					continue
				}
				pairs = pairs[1:]
			}
			for _, p := range pairs {
				l.set(containerKeys, ln, p)
			}
		}
	}
	c := &l.conf.Container
	c.BasePath = strings.NewReplacer("%h", hostname, "%n", hostname).Replace(c.BasePath)
}

func contains(names []string, name string) bool {
	short, _, _ := strings.Cut(name, ".")
	for _, n := range names {
		if n == name || n == short {
			return true
		}
	}
	return false
}

// pickNode finds the node's own line, by NodeName or NodeHostname.
func (l *loader) pickNode(hostname string) {
	for _, n := range l.conf.Nodes {
		if contains([]string{n.Name, n.Host}, hostname) || n.Name == "localhost" {
			l.conf.Node = n
			return
		}
	}
	// A file for a single host often names it as it is called elsewhere.
	if len(l.conf.Nodes) == 1 {
		l.conf.Node = l.conf.Nodes[0]
		return
	}
	if len(l.conf.Nodes) > 1 {
		l.problems = append(l.problems, Problem{Mistake, l.conf.File, 0, "NodeName", hostname,
			"no NodeName or NodeHostname line names this host; its CPUs are those of the machine"})
	}
}
