package integration

import (
	"fmt"
	"slices"
	"strings"
)

// orderFacts are the barriers between processes (spank-behaviour §1), for all
// callbacks that the recording has: field "before B" in the column of A. What
// races in the original is not among them.
func orderFacts(facts *table, records []record) {
	var columns []string
	batch, lite := false, false
	for i := range records {
		batch = batch || records[i].actor == batchActor
		lite = lite || records[i].Items == nil && records[i].CB != "opt_cb"
		if records[i].CB != "opt_cb" {
			columns = append(columns, records[i].column())
		}
	}
	before := func(a, b string) {
		if lite && strings.Contains(a+b, ":task_exit") {
			return // which task has ended is not recorded
		}
		i, j := slices.Index(columns, a), slices.Index(columns, b)
		if i < 0 || j < 0 {
			return
		}
		facts.set(a, "before "+b, map[bool]string{true: "yes", false: "no"}[i < j])
	}
	tags := map[string]bool{}
	for i := range records {
		tags[records[i].Tag] = true
	}
	for tag := range tags {
		suffix := ""
		if tag != "A" {
			suffix = "/" + tag
		}
		pair := func(a, b string) { before(a+suffix, b+suffix) }
		jobOrder(batch, pair)
		for _, actor := range []string{"remote", batchActor} {
			taskOrder(actor, ranks(columns, actor), pair)
		}
	}
}

// jobOrder is the order between the programs of one job.
func jobOrder(batch bool, before func(a, b string)) {
	if batch {
		before("allocator:init_post_opt", "job_script:job_prolog")
		before("job_script:job_prolog", "batch:init")
		before("batch:task_init.0", "local:init")
		before("local:exit", "batch:task_exit.0")
		before("batch:exit", "job_script:job_epilog")
	} else {
		before("allocator:init_post_opt", "local:init")
		before("local:local_user_init", "job_script:job_prolog")
		before("local:exit", "allocator:exit")
	}
	before("job_script:job_prolog", "remote:init")
	before("local:local_user_init", "remote:init")
	before("remote:exit", "job_script:job_epilog")
}

// taskOrder is the order between a step's own process and its n tasks: none
// goes on to task_init before every task_post_fork has returned.
func taskOrder(actor string, n int, before func(a, b string)) {
	name := func(cb string, rank int) string { return fmt.Sprintf("%s:%s.%d", actor, cb, rank) }
	for i := range n {
		before(actor+":user_init", name("task_init_privileged", i))
		for j := range n {
			before(name("task_post_fork", j), name("task_init", i))
		}
		before(name("task_init_privileged", i), name("task_init", i))
		before(name("task_init", i), name("task_exit", i))
		before(name("task_exit", i), actor+":exit")
		if actor == "remote" {
			before(name("task_exit", i), "local:exit")
		}
	}
}

// ranks counts the tasks of an actor.
func ranks(columns []string, actor string) int {
	n := 0
	for slices.Contains(columns, fmt.Sprintf("%s:task_init_privileged.%d", actor, n)) {
		n++
	}
	return n
}
