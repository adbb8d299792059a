package slurmconf

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// keysOf reads a list of testdata: a key and the releases that have it, a line.
func keysOf(t *testing.T, file string) (keys []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`^(\w+)(?: \d\d\.\d\d)+\n$`)
	for l := range strings.Lines(string(text)) {
		if strings.HasPrefix(l, "#") {
			continue
		}
		m := line.FindStringSubmatch(l)
		if m == nil {
			t.Fatalf("%s: %q", file, l)
		}
		keys = append(keys, strings.ToLower(m[1]))
	}
	return keys
}

// TestClasses: each key of slurm.conf(5) is read, or in exactly one class, and the classes have no
// other key.
func TestClasses(t *testing.T) {
	l := &loader{cfg: defaults("vm")}
	read := l.slurmKeys()
	all := keysOf(t, "testdata/slurm.conf.keys")
	if len(all) < 230 {
		t.Fatalf("%d keys", len(all))
	}
	for _, key := range all {
		in := 0
		for _, has := range []bool{read[key] != nil, slices.Contains(unsupported, key), slices.Contains(controllers, key)} {
			if has {
				in++
			}
		}
		if in != 1 {
			t.Errorf("%s is in %d classes", key, in)
		}
	}
	for _, key := range slices.Concat(unsupported, controllers) {
		if !slices.Contains(all, key) {
			t.Errorf("%s is no key of Slurm's", key)
		}
	}
	node := (&Node{}).keys()
	for _, key := range keysOf(t, "testdata/nodename.keys") {
		if node[key] == nil {
			t.Errorf("NodeName lines: %s is not known", key)
		}
	}
}

// TestLaunchWords: each word of LaunchParameters has its class, and one that no release has is a
// warning.
func TestLaunchWords(t *testing.T) {
	for _, word := range keysOf(t, "testdata/launchparameters.words") {
		if _, known := launchParameters[word]; !known {
			t.Errorf("%s has no class", word)
		}
	}
	_, probs, dir := load(t, map[string]string{"slurm.conf": "LaunchParameters=use_interactive_step,Mem_Sort,test_exec,\\\ndisable_send_gids,frob\n"})
	got := strings.Join(lines(probs, dir), "\n")
	const want = `ignored: slurm.conf:1: LaunchParameters=Mem_Sort: not supported here
ignored: slurm.conf:1: LaunchParameters=test_exec: not supported here
ignored: slurm.conf:1: LaunchParameters=disable_send_gids: the controller's
warning: slurm.conf:1: LaunchParameters="use_interactive_step,Mem_Sort,test_exec,disable_send_gids,frob": word "frob" is not known and has no effect`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
