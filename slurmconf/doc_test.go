package slurmconf

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestDocumentedDefaults: the defaults that docs/configuration.md has are the code's, as far as a key is
// a number, a word, or yes or no, and is a field of its name that is set where it is read.
func TestDocumentedDefaults(t *testing.T) {
	text, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	cfg := defaults("vm")
	structs := map[string]any{"slurm.conf": *cfg, "cgroup.conf": cfg.Cgroup, "job_container.conf": cfg.Container, "stepd.conf": cfg.Stepd}
	item := regexp.MustCompile(`(?m)^- (\*\*.*?): (.*(?:\n  .*)*)`)
	given := regexp.MustCompile("\\(default (yes|no|[0-9]+|`[a-z/_]+`)[);:]")
	// Where these are used, 0 or "" stands for them.
	elsewhere := []string{"SlurmdSpoolDir", "UserStepsMax", "UserConnectionsMax", "UserRequestBytes", "UserReplayBytes", "SpawnStepsMax", "PublishedNamesMax"}
	checked := 0
	for section := range strings.SplitSeq(string(text), "\n## ") {
		title, body, _ := strings.Cut(section, "\n")
		for _, m := range item.FindAllStringSubmatch(body, -1) {
			want := given.FindStringSubmatch(m[2])
			if structs[title] == nil || want == nil {
				continue
			}
			for _, key := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(m[1], -1) {
				field := reflect.ValueOf(structs[title]).FieldByNameFunc(func(name string) bool { return strings.EqualFold(name, key[1]) })
				if !field.IsValid() || slices.Contains(elsewhere, key[1]) {
					continue
				}
				checked++
				got := fmt.Sprint(field.Interface())
				switch v := field.Interface().(type) {
				case time.Duration:
					unit := time.Second
					if key[1] == "SystemdTimeout" {
						unit = time.Millisecond
					}
					got = fmt.Sprint(int64(v / unit))
				case bool:
					got = map[bool]string{true: "yes", false: "no"}[v]
				}
				if got != strings.Trim(want[1], "`") {
					t.Errorf("%s: %s: the document says %s, and the code %s", title, key[1], want[1], got)
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("%d defaults were checked", checked)
	}
}
