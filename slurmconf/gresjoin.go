package slurmconf

import (
	"cmp"
	"fmt"
	"slices"
)

// gresPart is what one entry of Gres= takes of one line of gres.conf.
type gresPart struct {
	gres Gres
	// Where its devices stand, to number them as gres.conf does.
	name, line int
	offset     uint64
}

// joinGres makes Config.Gres of what its Gres= wants and this node's lines of
// gres.conf, as the comment of Config.Gres says. A slurm.conf without any node leaves all
// to gres.conf.
func (l *loader) joinGres(wanted []NodeGres, lines []Gres) {
	if len(l.nodes) == 0 {
		l.cfg.Gres = lines
		return
	}
	used := make([]uint64, len(lines)) // of each line's count
	var parts []gresPart
	for _, want := range wanted {
		name := slices.IndexFunc(l.cfg.Node.Gres, func(g NodeGres) bool { return g.Name == want.Name })
		parts = append(parts, l.takeGres(want, name, lines, used)...)
	}
	slices.SortStableFunc(parts, func(a, b gresPart) int {
		return cmp.Or(a.name-b.name, a.line-b.line, cmp.Compare(a.offset, b.offset))
	})
	for _, p := range parts {
		l.cfg.Gres = append(l.cfg.Gres, p.gres)
	}
	for i, g := range lines {
		if used[i] < g.Count {
			kind := kindOf(g.Name, g.Type)
			l.probs.at(statement{file: g.File, line: g.Line}, SeverityWarning, fmt.Sprintf("write Gres=%s:%d for this node into slurm.conf", kind, g.Count),
				"%d of %d %s are left out: NodeName's Gres= has no more", g.Count-used[i], g.Count, kind)
		}
	}
}

// wantedGres are the entries of Gres= that can be: of names that the site has
// and that are not shared.
func (l *loader) wantedGres() []NodeGres {
	var out []NodeGres
	for _, g := range l.cfg.Node.Gres {
		switch {
		case !slices.Contains(l.cfg.GresTypes, g.Name):
			l.probs.valueOf(l.nodeFrom, "Gres", wrong("add it there", "GresTypes has not %q", g.Name))
		case isShared(g.Name):
			l.probs.valueOf(l.nodeFrom, "Gres", &flaw{SeverityWarning, fmt.Sprintf("%s is left out: sharing a GPU among steps is not supported", g.Name), ""})
		default:
			out = append(out, g)
		}
	}
	return out
}

// takeGres takes what one entry of Gres= wants: from the lines of its type
// first, then from the lines without a type. An entry without a type takes any,
// and they keep their types. What gres.conf does not speak of is counted only,
// but a gpu, whose devices must be known.
func (l *loader) takeGres(want NodeGres, name int, lines []Gres, used []uint64) []gresPart {
	if want.Name != "gpu" && !slices.ContainsFunc(lines, func(g Gres) bool { return g.Name == want.Name }) {
		if want.Count == 0 {
			return nil
		}
		return []gresPart{{name: name, gres: Gres{
			Name: want.Name, Type: want.Type, Count: want.Count, NoConsume: want.NoConsume, File: l.nodeFrom.file, Line: l.nodeFrom.line,
		}}}
	}
	var parts []gresPart
	rest := want.Count
	for _, exact := range []bool{true, false} {
		for i, g := range lines {
			fits := g.Type == want.Type || want.Type == ""
			if !exact {
				fits = g.Type == ""
			}
			n := min(rest, g.Count-used[i])
			if g.Name != want.Name || !fits || n == 0 {
				continue
			}
			part := cutGres(g, used[i], n)
			part.Type = cmp.Or(g.Type, want.Type)
			part.NoConsume = want.NoConsume
			parts = append(parts, gresPart{gres: part, name: name, line: i, offset: used[i]})
			used[i] += n
			rest -= n
		}
	}
	if rest > 0 {
		kind := kindOf(want.Name, want.Type)
		l.probs.valueOf(l.nodeFrom, "Gres", &flaw{SeverityWarning, fmt.Sprintf("%s:%d, but gres.conf has %d", kind, want.Count, want.Count-rest), "the node is drained: mend one of them"})
		l.cfg.DrainReasons = append(l.cfg.DrainReasons, fmt.Sprintf("gres/%s: slurm.conf has %d, gres.conf %d", kind, want.Count, want.Count-rest))
	}
	return parts
}

// cutGres is n of g's resources from number first on.
func cutGres(g Gres, first, n uint64) Gres {
	g.Count = n
	if g.Files != nil && !g.MultipleFiles {
		g.Files = g.Files[first : first+n]
	}
	return g
}

func kindOf(name, kind string) string {
	if kind == "" {
		return name
	}
	return name + ":" + kind
}
