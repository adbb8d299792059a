// Package pmix serves PMIx to the ranks of one node (Slurm's mpi/pmix): it runs
// pmixhost, a C program on the system's libpmix that is the PMIx server and
// decides nothing, and answers what the library asks of its host.
//
//	rank ──PMIx──▶ pmixhost (the user's) ──socketpair──▶ stepd (root): this package
//	                                                       │ launch.Peers: other nodes
//	                                                       ▼ launch.MPIServices: the job
//
// libpmix keeps the keys of this node's ranks, wakes them out of a fence and
// hands events around. What reaches beyond the node comes here as an upcall: a
// fence's meeting with the other nodes, the keys of a rank that is elsewhere,
// names, spawn, queries, signals.
//
// pmixhost runs as the step's user with no_new_privs, outside of the tasks'
// cgroup, not to be attached to by the tasks, and ends with its channel. All that
// it says is under the user's control, and is bounded and checked here.
//
// Begin with Plugin. The files: host.go runs the program in a folder of its own and moves
// frames; wire.go and protocol.go are their form, which pmixhost/protocol.h defines; ranks.go
// makes the job's description; control.go bounds the upcalls and shares them out to
// meetings.go (fences, groups, queries), names.go (names, modex) and plugin.go (spawn).
//
// Sources: the PMIx standard 4.1 (chapters 16 to 18), libpmix's headers, and what
// libpmix 4.2.2 does.
package pmix
