// SPDX-License-Identifier: Apache-2.0
/* What a plugin does to the host that calls it: checked after each hook, so that
 * the one that did it is named, and with few system calls, as a task pays for
 * each of them once for every plugin. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
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
	struct rlimit r;

	h->control_ino = inode(h->control);
	h->log_ino = inode(h->log);
	h->gate_ino = inode(h->gate);
	if (getrlimit(RLIMIT_NOFILE, &r) == 0)
		h->nofile = r.rlim_cur;
}

/* Ends the process inside the hook, as the board has it: stepd reads there who
 * it was, and by the number what (spank.Host.Crash). */
static _Noreturn void end_in_hook(struct host *h, int error)
{
	board_error(h, h->in_task ? h->rank + 1 : 0, error);
	_exit(1);
}

/* A hook returns once. A process that a plugin forked in the host and that comes
 * back from the hook as well is no second host. In a task it may be the task:
 * so work plugins that make a pid namespace, and whose first process never comes
 * back. The first one to come back is the task, then. */
static void end_double(struct host *h, const struct plugin *p)
{
	if (!h->in_task && h->control < 0)
		_exit(0);
	if (h->in_task && !board_claim(h, h->rank + 1)) {
		log_warn(h, p, h->hook, "came back in two processes: the second one was ended");
		_exit(0);
	}
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

/* Root in effect in every hook but user_init, and task_init, after which nothing
 * is root's any more. */
static void check_user(struct host *h, const struct plugin *p)
{
	uid_t want = h->hook == HOOK_USER_INIT ? h->cfg.uid : 0;

	if (h->cfg.context != S_CTX_REMOTE || h->hook == HOOK_TASK_INIT || geteuid() == want)
		return;
	if (seteuid(0) < 0 || seteuid(want) < 0)
		end_in_hook(h, EPERM);
	log_warn(h, p, h->hook, "changed the effective user: taken back");
}

/* Where nothing is open, the next descriptor that stepd hands over would land,
 * to be lost when the tasks' streams are put there. */
static void check_stdio(struct host *h, const struct plugin *p)
{
	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			continue;
		(void)dup2(h->null, fd);
		log_warn(h, p, h->hook, "closed a standard descriptor: it is /dev/null now");
	}
}

/* Those that stepd handed over, and the limit that lets it hand over more. */
static void check_table(struct host *h, const struct plugin *p)
{
	struct rlimit r;

	/* Who closes some closes all of them, or all above a number. */
	if (h->nfds > 0 &&
	    (fcntl(h->fds[0], F_GETFD) < 0 || fcntl(h->fds[h->nfds - 1], F_GETFD) < 0))
		end_in_hook(h, EBADF);
	if (h->cfg.context != S_CTX_REMOTE || getrlimit(RLIMIT_NOFILE, &r) < 0 ||
	    r.rlim_cur >= h->nofile)
		return;
	r.rlim_cur = h->nofile;
	if (r.rlim_max < r.rlim_cur)
		r.rlim_max = r.rlim_cur;
	/* Where root may raise its hard limit at all (CAP_SYS_RESOURCE). */
	uid_t user = geteuid();
	if (seteuid(0) < 0 || setrlimit(RLIMIT_NOFILE, &r) < 0)
		end_in_hook(h, EMFILE);
	if (seteuid(user) < 0)
		end_in_hook(h, EPERM);
	log_warn(h, p, h->hook, "lowered the limit of open files: raised again");
}

void guard_check(struct host *h, const struct plugin *p)
{
	end_double(h, p);
	/* Past the gate a task needs none of them. */
	if (!h->in_task ? inode(h->control) != h->control_ino
			: h->hook != HOOK_TASK_INIT && inode(h->gate) != h->gate_ino)
		end_in_hook(h, EBADF);
	if (!h->in_task)
		check_sigchld(h, p);
	check_user(h, p);
}

void guard_check_all(struct host *h, const struct plugin *p)
{
	guard_check(h, p);
	if (inode(h->log) != h->log_ino)
		end_in_hook(h, EBADF);
	check_stdio(h, p);
	check_table(h, p);
}
