/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a keeper inherits of its step daemon, by number. The Go half reads these lines
 * (slurm/keeper/keeper_test.go).
 */
#ifndef KEEPER_H
#define KEEPER_H

/* The end of a pipe that the daemon alone writes to: KEEPER_BYE, or its end. Descriptors 1 and
 * 2 are the daemon's log. */
#define KEEPER_FD_LIFE 0
/* The step daemon's program, of the release that runs the step. */
#define KEEPER_FD_DAEMON 3
/* What the daemon leaves: slurm/keeper/estate.go. The keeper does not read it. */
#define KEEPER_FD_ESTATE 4
/* The step's cgroup, locked; /dev/null of a step without one. */
#define KEEPER_FD_LOCK 5
/* From here on, as many as there are: files cgroup.kill of the step's cgroups. */
#define KEEPER_FD_KILL 6

/* The daemon has ended its step by itself. */
#define KEEPER_BYE 'b'

/* The daemon's argument for the end of a step whose daemon has died. */
#define KEEPER_ORPHAN "--orphan"

#endif
