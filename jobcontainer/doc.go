// Package jobcontainer gives every job a view of the node of its own: the job
// container plugins of Slurm. None changes nothing. Tmpfs gives each job private
// directories over /tmp, /dev/shm or what Dirs= in job_container.conf names, in a
// mount namespace that all steps of the job share and that ends with the job; as
// job_container/linux it makes pid and user namespaces as well.
//
// noded owns the container: it calls Create before the job's first step and
// Delete after its epilog, and passes the descriptors from Join to each step. The
// package never joins a process: setns(2) needs a single thread, so the host joins
// itself (EntireStepInNS) or joins each task after its fork (spank/host/container.c).
// Begin with NewTmpfs and Restore.
//
// What a container consists of, and where it stays over a restart of noded:
//
//	RUN/jobs             bind mount on itself, private; while a job has a container
//	RUN/jobs/N/base      the BasePath that job N was made with
//	RUN/jobs/N/uid       whose job it is
//	RUN/jobs/N/ns        job N's mount namespace, pinned by a bind mount; pid and
//	                     user beside it are the others
//	RUN/jobs/N/keeper    the number of process 1 of the pid namespace
//	BASE/TAG             one node's place in BasePath, with the marker .node;
//	                     it too goes with the last container
//	BASE/TAG/N/0-tmp     job N's private directories, by index and name
//
// The state on disk is the truth and descriptors are a cache: kill -9 at any
// moment leaves a subset of the above, and Restore or Delete removes it.
// noded must live in the mount namespace of the host: a unit with PrivateTmp=
// or the like loses the pins when it stops.
//
// Linux 5.12 or newer is needed: openat2, statx's mount attributes and
// mount_setattr.
package jobcontainer
