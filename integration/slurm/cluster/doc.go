// Package cluster runs a private Slurm, of one node or of several, for tests and the benchmark:
// munged, slurmctld and slurmds of a release of Debian's, with the real slurmstepd or with
// the step daemon under test.
//
// Nothing of Slurm is installed on the machine: each release lives in a Debian root that
// mmdebstrap makes once, and a cluster in namespaces of its own (mounts, processes,
// network, host name), so that any number may run side by side, with the same ports and
// users. When the test ends, however it ends, the kernel ends all of a cluster's
// processes.
//
//	c, err := cluster.Start(ctx, cluster.Site{
//		Release:    "22.05",
//		Cache:      "/var/cache/stepd-slurm",
//		Programs:   "/src/stepd/bin",
//		StepDaemon: cluster.Programs + "/slurmstepd",
//		Users:      []string{"alice"},
//	})
//	defer c.Stop()
//	out, err := c.Command(ctx, "alice", "srun", "-n2", "hostname").Output()
//
// Begin with Site, Start and Command. The node is called n1. With Site.Nodes there are several,
// each a machine of its own to Slurm, and commands run beside them: see On, SetLink, StartNode
// and End. A cluster's files are below Dir, on both sides the same path; slurmctld.log and
// slurmd.log (slurmd.n1.log) are the first to read.
package cluster
