// SPDX-License-Identifier: Apache-2.0
/* What a plugin does to the host that calls it: checked after each hook, so that
 * the one that did it is named, and with few system calls, as a task pays for
 * each of them once for every plugin. */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* A socket or pipe is known by its inode; 0 for none. */
static ino_t inode(int fd)
{
	struct stat st;

	return fd >= 0 && fstat(fd, &st) == 0 ? st.st_ino : 0;
}

void guard_remember(struct host *h)
{
	h->control_ino = inode(h->control);
	h->log_ino = inode(h->log);
	h->gate_ino = inode(h->gate);
}

/* Ends the process inside the hook, as the board has it: stepd reads there who
 * it was, and by EBADF what. There is nothing else left to tell it by. */
static _Noreturn void lose_channels(struct host *h)
{
	board_error(h, h->in_task ? h->rank + 1 : 0, EBADF);
	_exit(1);
}

/* In the host a hook returns once. A process that a plugin forked there, and
 * that comes back from the hook as well, is no second host. (In a task it may be
 * the task: so work plugins that make a pid namespace.) */
static void end_double(const struct host *h)
{
	if (!h->in_task && h->control < 0)
		_exit(0);
}

void guard_check(struct host *h)
{
	end_double(h);
	/* Past the gate a task needs none of them. */
	if (!h->in_task ? inode(h->control) != h->control_ino
			: h->hook != HOOK_TASK_INIT && inode(h->gate) != h->gate_ino)
		lose_channels(h);
}

/* With SIGCHLD ignored the kernel reaps the tasks, and nobody learns how they ended. */
static void check_sigchld(struct host *h, const struct plugin *p)
{
	struct sigaction sa;

	if (sigaction(SIGCHLD, NULL, &sa) < 0 ||
	    (sa.sa_handler != SIG_IGN && !(sa.sa_flags & SA_NOCLDWAIT)))
		return;
	if (sa.sa_handler == SIG_IGN)
		sa.sa_handler = SIG_DFL;
	sa.sa_flags &= ~SA_NOCLDWAIT;
	(void)sigaction(SIGCHLD, &sa, NULL);
	log_warn(h, p, h->hook, "ignored SIGCHLD: taken back, or the tasks' ends would be lost");
}

void guard_check_all(struct host *h, const struct plugin *p)
{
	guard_check(h);
	if (inode(h->log) != h->log_ino)
		lose_channels(h);
	check_sigchld(h, p);
}
