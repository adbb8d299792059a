package main

import (
	"github.com/spf13/cobra"

	"stepd/internal/manual"
)

// page is noded(8), and noded's help screen.
func page(c *cobra.Command) *manual.Page {
	p := manual.Of(c, 8, nil, nil)
	p.Short = "node daemon: starts job steps and follows them"
	p.Usage = []string{
		"noded [-f FILE] [--run-dir DIR] [--spool-dir DIR] [-v]",
		"noded --check | --check-config [-f FILE]",
		"noded --version",
	}
	p.About = []string{
		"noded runs on each node, as root, mostly as the service noded.service. It takes requests on its socket, starts one stepd for each step, runs prolog and epilog, and keeps the records of the steps. The kernel identifies its clients.",
		"It stays in the foreground, and reports to systemd when it serves. SIGTERM stops it and leaves the steps running: the next noded finds them again.",
		"As process 1, in a container, it starts itself once more, reaps what loses its parent, and starts noded again when it crashes. SIGTERM then ends the steps, too: they have KillWait, and the container's own time to stop.",
	}
	p.Topics = []manual.Topic{
		{Title: "Exit codes", Entries: []manual.Entry{
			{Name: "0", Text: "stopped by SIGTERM; with --check: no mistake was found"},
			{Name: "1", Text: "a mistake in the configuration, another noded on the same spool directory, or no root"},
		}},
		{Title: "Environment", Entries: []manual.Entry{{Name: "SLURM_CONF", Text: "the configuration, where -f names none"}}},
		{Title: "Files", Entries: []manual.Entry{
			{Name: "/etc/stepd/slurm.conf", Text: "configuration; the other files stand beside it"},
			{Name: "/run/stepd/noded.sock", Text: "the socket for stepctl"},
			{Name: "/var/spool/stepd", Text: "the records of the steps, and events/JOB.STEP.jsonl, their event logs"},
		}},
	}
	p.See = []string{"stepctl(1)", "stepd.conf(5)", "stepd-slurm.conf(5)", "stepd-cgroup.conf(5)", "stepd-spank(7)"}
	return p
}
