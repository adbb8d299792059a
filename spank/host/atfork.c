// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <pthread.h>
#include <unistd.h>

#include "host.h"

static void close_in_child(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* The tasks' processes are killed before the exit hook, and signals of the user are
 * for them; a helper of the host lives as long as the host, as in Slurm. This
 * takes the kernel some milliseconds, which only plugins pay that fork. */
static void leave_tasks(void)
{
	if (!host.in_task && host.helpers >= 0)
		(void)!write(host.helpers, "0", 1);
}

/* Runs in the child of every fork(). A helper that a plugin starts must hold
 * none of our channels, or stepd would wait for it instead of for us. The gate
 * stays: a plugin may fork in a task and go on to exec in the child, as those do
 * that make pid namespaces. Only async-signal-safe calls. */
static void child(void)
{
	close_in_child(&host.control);
	if (!host.forked_ours)
		leave_tasks();
	close_in_child(&host.helpers);
	if (host.forked_ours)
		return;
	host.copy = true;
	close_in_child(&host.log);
	close_in_child(&host.exec_pipe);
}

void atfork_install(void)
{
	(void)pthread_atfork(NULL, NULL, child);
}
