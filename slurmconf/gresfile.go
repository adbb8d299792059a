package slurmconf

import (
	"slices"
	"strings"
)

// gresFile reads gres.conf, and brings it together with what the NodeName line
// says. The lines of other nodes are checked all the same.
func (l *loader) gresFile(_ string, stmts []statement) {
	var own []gresLine
	var auto, global *gresLine // with the AutoDetect of this node, and of all
	for _, s := range stmts {
		g, ok := l.gresLine(s)
		here, everywhere := l.isFor(s)
		if !ok || !here && !everywhere {
			continue
		}
		switch {
		case g.auto == "":
		case everywhere:
			global = g
		case auto != nil && auto.auto != g.auto:
			l.probs.valueOf(s, "AutoDetect", wrong("write the same", "%s:%d says %q for this node", auto.from.file, auto.from.line, auto.auto))
		default:
			auto = g
		}
		if g.gres.Name == "" {
			continue
		}
		if len(own) == gresFilesMax {
			l.probs.at(s, SeverityError, "", "cannot take more than %d lines for one node", gresFilesMax)
			break
		}
		own = append(own, *g)
	}
	if auto == nil {
		auto = global
	}
	if auto != nil && auto.auto != "off" {
		l.probs.valueOf(auto.from, "AutoDetect", wrong("write AutoDetect=off for this node, and its devices by File=", "finding devices by itself is not supported"))
	}
	wanted := l.wantedGres()
	l.joinGres(wanted, l.ownGres(own))
}

// gresLine reads one line and checks it by itself.
func (l *loader) gresLine(s statement) (*gresLine, bool) {
	g := &gresLine{from: s}
	if !l.set(s, s.pairs, g.keys(), SeverityError) {
		return g, false
	}
	if g.gres.Name == "" {
		if g.auto == "" {
			l.probs.at(s, SeverityError, "write Name= into it", "cannot use a line that names no resource")
		}
		return g, g.auto != ""
	}
	if key, f := g.complete(); f != nil {
		l.probs.valueOf(s, key, f)
		return g, false
	}
	return g, true
}

// isFor reports whether a line names this node, or none and is for all.
func (l *loader) isFor(s statement) (here, everywhere bool) {
	i := slices.IndexFunc(s.pairs, func(p pair) bool { return p.is("NodeName") })
	if i < 0 {
		return false, true
	}
	names, ok := l.hosts(s, s.pairs[i])
	return ok && slices.Contains(names, l.cfg.Node.Name), false
}

// ownGres checks this node's lines against the site and against each other, and
// returns what can be used.
func (l *loader) ownGres(lines []gresLine) []Gres {
	var out []Gres
	var above *gresLine
	for i := range lines {
		g := &lines[i]
		g.gres.File, g.gres.Line = g.from.file, g.from.line
		g.environment(above)
		above = g
		switch name := g.gres.Name; {
		case !l.isGresType(name):
			all := strings.Join(append(slices.Clone(l.cfg.GresTypes), name), ",")
			l.probs.valueOf(g.from, "Name", &flaw{SeverityWarning, "it is left out, since GresTypes has it not", "write GresTypes=" + all + " into slurm.conf"})
		case isShared(name):
			l.probs.valueOf(g.from, "Name", &flaw{SeverityWarning, "it is left out: sharing a GPU among steps is not supported", ""})
		default:
			if key, f := g.against(out); f != nil {
				l.probs.valueOf(g.from, key, f)
			} else if g.gres.Count > 0 {
				out = append(out, g.gres)
			}
		}
	}
	return out
}

// isGresType reports whether the site has the name. A site whose slurm.conf
// names no nodes and no GresTypes has what gres.conf says.
func (l *loader) isGresType(name string) bool {
	return slices.Contains(l.cfg.GresTypes, name) || l.cfg.GresTypes == nil && len(l.nodes) == 0
}

// environment settles which variables name a task's GPUs: the line's
// own, else the line's above where it has the same name and type, else all.
func (g *gresLine) environment(above *gresLine) {
	if g.gres.Name != "gpu" {
		return
	}
	switch {
	case g.env != nil:
	case above != nil && above.gres.Name == "gpu" && above.gres.Type == g.gres.Type:
		g.env = above.env
	default:
		g.env = gpuEnv()
	}
	for _, e := range gpuEnv() { // in this order, each once
		if slices.Contains(g.env, e) {
			g.gres.Flags = append(g.gres.Flags, e)
		}
	}
}

// against checks a line against the lines that hold already. It names the key that
// is wrong.
func (g *gresLine) against(others []Gres) (key string, f *flaw) {
	if g.gres.Name == "gpu" && g.gres.Files == nil && !slices.Contains(g.gres.Flags, GresCountOnly) {
		return "Name", wrong("name its devices by File=, or write Flags=CountOnly", "a gpu needs its device files")
	}
	total := len(g.gres.Files)
	for _, o := range others {
		for _, file := range g.gres.Files {
			if slices.Contains(o.Files, file) {
				return g.fileKey(), wrong("remove it from one of them", "%q is a device of %s:%d already", file, o.File, o.Line)
			}
		}
		if o.Name != g.gres.Name {
			continue
		}
		total += len(o.Files)
		switch {
		case (o.Files == nil) != (g.gres.Files == nil):
			return "Name", wrong("name files in all lines of one name, or in none", "%s:%d is of this name and differs in having files", o.File, o.Line)
		case o.Type != g.gres.Type:
		case o.Files == nil:
			return "Name", wrong("remove one of them", "%s:%d counts the same already", o.File, o.Line)
		case !slices.Equal(envOf(o.Flags), envOf(g.gres.Flags)):
			return "Name", wrong("write the same Flags", "%s:%d is of this name and type and differs in the flags of its environment", o.File, o.Line)
		}
	}
	if total > gresFilesMax {
		return g.fileKey(), wrong("", "the node has more than %d of them", gresFilesMax)
	}
	return "", nil
}

func (g *gresLine) fileKey() string {
	if g.gres.MultipleFiles {
		return "MultipleFiles"
	}
	return "File"
}

// envOf are the flags of a GPU's environment.
func envOf(flags []string) []string {
	return slices.DeleteFunc(slices.Clone(flags), func(f string) bool { return !slices.Contains(gpuEnv(), f) })
}
