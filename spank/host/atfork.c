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

/* Runs in the child of every fork() but those of our tasks: a helper that a
 * plugin starts must hold none of our channels, or stepd would wait for it
 * instead of for us. The gate stays: a plugin may fork in a task and go on to exec
 * in the child, as those do that make pid namespaces. Only async-signal-safe calls. */
static void child(void)
{
	close_in_child(&host.control);
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
