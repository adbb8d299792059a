package slurmconf

import (
	"slices"
	"strings"

	"stepd/srunopt"
)

// noConsume is the word in Gres= that makes an entry one that is not used up.
const noConsume = "no_consume"

// nodeGres reads Gres= of a NodeName line: NAME[:TYPE][:no_consume]:COUNT,
// parted by commas. Without a count it is 1.
func nodeGres(v string) (all []NodeGres, _ *flaw) {
	if strings.EqualFold(v, "none") {
		return nil, nil
	}
	var plain []string
	var free []bool
	for item := range strings.SplitSeq(v, ",") {
		fields := strings.Split(item, ":")
		kept := slices.DeleteFunc(fields, func(f string) bool { return strings.EqualFold(f, noConsume) })
		plain = append(plain, strings.Join(kept, ":"))
		free = append(free, len(kept) < len(fields))
	}
	list, err := srunopt.ParseGres(strings.Join(plain, ","))
	if err != nil {
		return nil, wrong("write NAME[:TYPE][:no_consume]:COUNT, such as gpu:a100:2,scratch:100G", "%v", err)
	}
	for i, g := range list {
		all = append(all, NodeGres{Name: g.Name, Type: g.Type, NoConsume: free[i], Count: g.Count})
	}
	return all, nil
}

// gresTypes reads GresTypes: names, parted by commas.
func gresTypes(v string) ([]string, *flaw) {
	out := words(v)
	for _, w := range out {
		if err := srunopt.CheckGresName(w); err != nil {
			return nil, wrong("write names such as gpu,scratch", "%v", err)
		}
	}
	return out, nil
}
