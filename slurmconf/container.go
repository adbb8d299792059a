package slurmconf

import (
	"slices"
	"strings"
	"time"
)

// Container is this node's part of job_container.conf.
type Container struct {
	// BasePath holds the private directories; %h and %n in it are left to its
	// user. "" means that no line is for this node.
	BasePath     string
	AutoBasePath bool
	// Dirs get a private directory each; nil is /tmp and /dev/shm.
	Dirs           []string
	InitScript     string
	Shared         bool
	EntireStepInNS bool
	// CloneNSScript runs when the namespace was made, CloneNSEpilog before it
	// goes; each has 10 s unless the Wait says otherwise.
	CloneNSScript, CloneNSEpilog         string
	CloneNSScriptWait, CloneNSEpilogWait time.Duration
	// PIDNamespace and UserNamespace are CloneNSFlags.
	PIDNamespace, UserNamespace bool
}

func (c *Container) keys() keySet {
	return keySet{
		"nodename":           nothing, // containerFile's
		"basepath":           parsed(&c.BasePath, basePath),
		"autobasepath":       boolean(&c.AutoBasePath),
		"dirs":               absoluteList(&c.Dirs, ","),
		"initscript":         parsed(&c.InitScript, absolute),
		"shared":             boolean(&c.Shared),
		"entirestepinns":     boolean(&c.EntireStepInNS),
		"clonensscript":      parsed(&c.CloneNSScript, absolute),
		"clonensscript_wait": seconds(&c.CloneNSScriptWait),
		"clonensepilog":      parsed(&c.CloneNSEpilog, absolute),
		"clonensepilog_wait": seconds(&c.CloneNSEpilogWait),
		"clonensflags":       c.cloneFlags,
	}
}

// cloneFlags reads CloneNSFlags, whose words are clone(2)'s.
func (c *Container) cloneFlags(v string) *flaw {
	c.PIDNamespace, c.UserNamespace = false, false
	for _, word := range strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == '|' }) {
		switch strings.ToUpper(strings.TrimSpace(word)) {
		case "CLONE_NEWNS": // a job always has it
		case "CLONE_NEWPID":
			c.PIDNamespace = true
		case "CLONE_NEWUSER":
			c.UserNamespace = true
		default:
			return wrong("write CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUSER, parted by commas", "%q is not available", word)
		}
	}
	return nil
}

// noBasePath switches the plugin off on some nodes where a line for all nodes
// has switched it on.
const noBasePath = "none"

func basePath(v string) (string, *flaw) {
	if strings.EqualFold(v, noBasePath) {
		return noBasePath, nil
	}
	return absolute(v)
}

// containerFile applies job_container.conf: first the lines for all nodes,
// over them those with this node in their NodeName, key by key.
func (l *loader) containerFile(file string, stmts []statement) {
	c := &l.cfg.Container
	for _, s := range stmts {
		if slices.ContainsFunc(s.pairs[1:], func(p pair) bool { return p.is("NodeName") }) {
			l.probs.at(s, SeverityError, "write NodeName first in its line", "cannot use NodeName behind %s: the line would be for all nodes", s.pairs[0].key)
		}
		if !s.pairs[0].is("NodeName") {
			l.set(s, s.pairs, c.keys(), SeverityError)
		}
	}
	for _, s := range stmts {
		if !s.pairs[0].is("NodeName") {
			continue
		}
		target := &Container{} // lines of other nodes are checked all the same
		if names, ok := l.hosts(s, s.pairs[0]); ok && slices.Contains(names, l.cfg.Node.Name) {
			target = c
		}
		l.set(s, s.pairs, target.keys(), SeverityError)
	}
	if c.BasePath == noBasePath {
		c.BasePath = ""
		l.cfg.JobContainerType = "none"
	}
	l.containerTogether(file)
	if l.cfg.JobContainerType != "none" && c.BasePath == "" {
		l.probs.at(statement{file: file}, SeverityError, "write BasePath=DIRECTORY, or JobContainerType=job_container/none into slurm.conf",
			"cannot make job containers: no BasePath for node %s", l.cfg.Node.Name)
	}
}

// containerTogether finds what does not go together in job_container.conf.
func (l *loader) containerTogether(file string) {
	c, s := &l.cfg.Container, statement{file: file}
	switch {
	case l.cfg.JobContainerType == "tmpfs" && (c.PIDNamespace || c.UserNamespace):
		l.probs.at(s, SeverityError, "write JobContainerType=job_container/linux into slurm.conf", "cannot use CloneNSFlags with job_container/tmpfs, which makes a mount namespace alone")
	case l.cfg.JobContainerType == "linux" && c.PIDNamespace && c.EntireStepInNS:
		l.probs.at(s, SeverityError, "leave out one of them", "cannot use EntireStepInNS with CLONE_NEWPID: plugins would find no /proc/self")
	}
}
