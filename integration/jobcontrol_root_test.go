package integration

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestRootJobControlOfARun: a run in an allocation has a job control environment of its own, which
// begins empty, as measured of srun 22.05.8. Of the job's first run Prolog and Epilog get what it has
// set over what alloc's plugins have, and nothing that it has unset; a batch job's run changes nothing.
func TestRootJobControlOfARun(t *testing.T) {
	n := startNode(t, site{})
	so, marks := n.path("jobcontrol.so"), n.markFile(t)
	compile(t, "-fPIC", "-shared", "-I", ownHeaders, "testdata/plugins/jobcontrol.c", "-o", so)
	const twoSet = "3:init_post_opt:set:KEEP:alloc 3:init_post_opt:set:GONE:alloc "
	run := n.bin + " run true"
	for name, c := range map[string]struct {
		args  []string // "RUN", "TWO": scripts with that many runs
		words string
		calls string // what the calls return, in their order
		gets  string // what prolog and epilog get
	}{
		"get, overwrite=0 and unset": {
			[]string{"alloc", "sh", "-c", run},
			"3:init:set:EARLY:alloc " + twoSet + "1:init_post_opt:get:KEEP 1:init_post_opt:set:KEEP:run:0 1:init_post_opt:set:KEEP:late:0 1:init_post_opt:get:KEEP " +
				"1:init_post_opt:get:GONE 1:init_post_opt:unset:GONE 1:local_user_init:get:GONE 1:local_user_init:set:NEW:run 1:local_user_init:null",
			"0 0 0 3004 0 0 0 run 3004 0 3004 0 3001", "EARLY=alloc KEEP=run NEW=run",
		},
		"overwrite=1 in local_user_init": {
			[]string{"alloc", "sh", "-c", run}, twoSet + "1:local_user_init:set:KEEP:run:1", "0 0 0", "GONE=alloc KEEP=run",
		},
		"set again": {
			[]string{"alloc", "sh", "-c", run}, twoSet + "1:init:unset:GONE 1:local_user_init:set:GONE:again:0", "0 0 0 0", "GONE=again KEEP=alloc",
		},
		"unset of what alloc sets itself": {
			[]string{"alloc", "sh", "-c", run}, twoSet + "3:init_post_opt:unset:GONE", "0 0 0", "KEEP=alloc",
		},
		"the second run": {
			[]string{"alloc", "sh", "-c", "N=1 " + run + "; N=2 " + run}, twoSet + "1:init_post_opt:unset:GONE", "0 0 0 0", "KEEP=alloc",
		},
		"a batch job": {
			[]string{"batch", "-W", "-o", "/dev/null", n.userFile(t, "run.sh", "#!/bin/sh\n"+run+"\n", 0o755)},
			twoSet + "1:init_post_opt:unset:GONE 1:init_post_opt:get:KEEP 1:init_post_opt:set:KEEP:run:1", "0 0 0 3004 0", "GONE=alloc KEEP=alloc",
		},
		"a run alone": {
			[]string{"run", "true"}, "1:init:set:A:init 1:init_post_opt:set:B:post 1:local_user_init:unset:A 1:local_user_init:get:A 1:local_user_init:set:B:late:0", "0 0 0 3004 0", "B=post",
		},
		"a long one": {[]string{"alloc", "sh", "-c", run}, "1:init:big:LONG 3:init:set:LONG:short", "0 0", "LONG=" + strings.Repeat("x", 40-len("SPANK_LONG="))},
	} {
		for _, flag := range []string{"required", "optional"} {
			t.Run(name+", "+flag, func(t *testing.T) {
				must(t, os.Truncate(marks, 0))
				n.stack(t, flag+" "+so+" mark="+marks+" "+c.words)
				if r := n.do(t, call{args: c.args}); r.code != 0 {
					t.Fatalf("got %v", r)
				}
				n.idle(t)
				var calls []string
				gets := map[string][]string{}
				for _, line := range strings.Split(strings.TrimSpace(readFile(t, marks)), "\n") {
					words := strings.Fields(line)
					if v, ok := strings.CutPrefix(words[1], "SPANK_"); ok {
						gets[words[0]] = append(gets[words[0]], v)
					} else {
						calls = append(calls, words[1:]...)
					}
				}
				if got := strings.Join(calls, " "); got != c.calls {
					t.Errorf("the calls return %q, want %q", got, c.calls)
				}
				for _, hook := range []string{"job_prolog", "job_epilog"} {
					slices.Sort(gets[hook])
					if got := strings.Join(gets[hook], " "); got != c.gets {
						t.Errorf("%s gets %q, want %q", hook, got, c.gets)
					}
				}
			})
		}
	}
}
