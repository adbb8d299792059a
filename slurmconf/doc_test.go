package slurmconf

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"stepd/step"
)

// TestDocumentation: docs/configuration.md has each key that is read, and no other.
func TestDocumentation(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	l := &loader{cfg: defaults("vm")}
	want := map[string]keySet{
		"slurm.conf":          l.slurmKeys(),
		"NodeName lines":      (&Node{}).keys(),
		"PartitionName lines": (&partitionLine{}).keys(),
		"cgroup.conf":         (&Cgroup{}).keys(),
		"gres.conf":           (&gresLine{}).keys(),
		"job_container.conf":  (&Container{}).keys(),
		"stepd.conf":          (&Stepd{}).keys("/"),
		"mpi.conf":            mpiKeys(&step.PMIxConf{}),
	}
	word := regexp.MustCompile(`\*\*` + "`([A-Za-z0-9_]+)`" + `\*\*`) // in bold, at the begin of an item
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		keys, ours := want[title]
		if !ours {
			continue
		}
		delete(want, title)
		told := map[string]bool{}
		for _, m := range word.FindAllStringSubmatch(body, -1) {
			told[strings.ToLower(m[1])] = true
		}
		for key := range keys {
			if !told[key] {
				t.Errorf("%s: key %s is not in the document", title, key)
			}
		}
		for key := range told {
			if keys[key] == nil {
				t.Errorf("%s: key %s is in the document and is not read", title, key)
			}
		}
	}
	for title := range want {
		t.Errorf("there is no section %q", title)
	}
}
