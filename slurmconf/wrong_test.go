package slurmconf

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"stepd/step"
)

// anyValue are the keys that take whatever is written, and why that is right.
var anyValue = map[string]string{
	// Paths, which are looked for when they are used: noded --check reports missing ones.
	"plugstackconfig": "a path", "prolog": "a path or glob", "epilog": "a path or glob", "taskprolog": "a path", "taskepilog": "a path",
	"unkillablestepprogram": "a path",
	"partitionname":         "a name, which nothing here depends on",
	// Words of the controller's, or of newer releases.
	"interactivestepoptions": "options, which alloc reads",
	"bcastaddr":              "the controller's", "suspendtime": "the controller's", "feature": "the controller's", "features": "the controller's", "state": "the controller's", "weight": "the controller's",
	"tmpdisk": "the controller's", "nodeaddr": "the controller's", "port": "the controller's", "reason": "the controller's", "parameters": "the controller's", "restrictedcorespergpu": "the controller's",
	"topology": "the controller's", "tresweights": "the controller's", "gresconf": "the controller's",
	// Keys that are listed as ignored.
	"slurmdpidfile": "no effect", "tmpfs": "no effect",
	"signalchildrenprocesses": "no effect", "ignoresystemdonfailure": "no effect", "enableextracontrollers": "no effect",
	"links": "no effect", "link": "no effect",
}

// wrongValues are tried for each key: one of them at least must be refused.
var wrongValues = []string{"-1", "nonsense/\\", "99999999999999999999", "a b", "../x%", "[", "1-", ",;,", strings.Repeat("x", 5000)}

// TestEveryKeyWrong: each key of each file, with a wrong value: the finding names the
// file, the line and the key, and is a mistake or, where a release may come that knows
// the word, a warning. The keys are those that the code reads.
func TestEveryKeyWrong(t *testing.T) {
	l := &loader{cfg: defaults("vm"), mpiTypes: []string{"none"}}
	for _, f := range []struct {
		file   string
		before string // what comes before the key in its line
		keys   keySet
	}{
		{"slurm.conf", "", l.slurmKeys()},
		{"slurm.conf", "NodeName=vm ", (&Node{}).keys()},
		{"slurm.conf", "PartitionName=p ", (&partitionLine{}).keys()},
		{"cgroup.conf", "", (&Cgroup{}).keys()},
		{"gres.conf", "Name=gpu ", (&gresLine{}).keys()},
		{"job_container.conf", "BasePath=/x ", (&Container{}).keys()},
		{"stepd.conf", "", (&Stepd{}).keys("/")},
		{"mpi.conf", "", mpiKeys(&step.PMIxConf{})},
	} {
		for _, key := range slices.Sorted(maps.Keys(f.keys)) {
			t.Run(fmt.Sprintf("%s %s%s", f.file, f.before, key), func(t *testing.T) {
				if !told(t, f.file, f.before, key, "") {
					t.Errorf("%s without a value is taken", key)
				}
				any := anyValue[key] != "" || anyValue[f.file+" "+key] != ""
				taken := true
				for _, v := range wrongValues {
					if told(t, f.file, f.before, key, v) {
						taken = false
						break
					}
				}
				if taken != any {
					t.Errorf("any value taken: %v, and anyValue says %v", taken, any)
				}
			})
		}
	}
	for key := range anyValue {
		if !slices.ContainsFunc([]keySet{l.slurmKeys(), (&Node{}).keys(), (&partitionLine{}).keys(), (&Cgroup{}).keys(), (&gresLine{}).keys(), (&Container{}).keys(), (&Stepd{}).keys("/"), mpiKeys(&step.PMIxConf{})},
			func(k keySet) bool { return k[key[strings.LastIndexByte(key, ' ')+1:]] != nil }) {
			t.Errorf("anyValue has %s, which is no key any more", key)
		}
	}
}

// told loads a file whose third line has the key with the value, and reports whether
// that is found to be wrong.
func told(t *testing.T, file, before, key, value string) bool {
	t.Helper()
	files := map[string]string{"slurm.conf": "GresTypes=gpu\n"}
	if before == "" || file != "slurm.conf" {
		files["slurm.conf"] += "NodeName=vm\n"
	} else {
		files["slurm.conf"] += "# a line\n"
		if !strings.HasPrefix(before, "NodeName") {
			files["slurm.conf"] = "GresTypes=gpu\nNodeName=vm\n"
		}
	}
	if strings.ContainsAny(value, " ") {
		value = `"` + value + `"`
	}
	line := 3
	text := before + key + "=" + value + "\n"
	if before == "NodeName=vm " && key == "nodename" || before == "PartitionName=p " && key == "partitionname" || before == "Name=gpu " && key == "name" || before == "BasePath=/x " && key == "basepath" {
		text = key + "=" + value + "\n"
	}
	if file == "slurm.conf" {
		files[file] += text
	} else {
		files[file] = "# one\n# two\n" + text
	}
	dir := write(t, files)
	_, probs, err := Load(filepath.Join(dir, "slurm.conf"), "vm")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range probs {
		at := p.File == filepath.Join(dir, file) && p.Line == line
		if at && p.Severity != SeverityIgnored && strings.Contains(strings.ToLower(p.Text), key) {
			return true
		}
	}
	return false
}
