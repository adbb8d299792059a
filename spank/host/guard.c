// SPDX-License-Identifier: Apache-2.0
/* What a plugin does to the host that calls it: looked at after its hooks, so
 * that the one that did it is named. What would keep the host from its work is
 * taken back, and told once; where that cannot be done the host ends inside the
 * hook, as if the plugin had crashed it. All else that a plugin may change of
 * its process is left as in Slurm: its directory, umask, handlers, other limits.
 *
 * A step pays for each system call in here once for every hook and plugin, a
 * task for those of guard_check. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* What was told, a bit each. */
enum damage {
	DAMAGE_STDIO = 1,
	DAMAGE_SIGCHLD = 2,
	DAMAGE_MASK = 4,
	DAMAGE_USER = 8,
	DAMAGE_NOFILE = 16,
	DAMAGE_FILES = 32,
};

static struct file_id id_of(int fd)
{
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return (struct file_id){0};
	return (struct file_id){st.st_dev, st.st_ino};
}

static bool is(int fd, struct file_id was)
{
	struct file_id now = id_of(fd);

	return now.dev == was.dev && now.ino == was.ino;
}

static struct user_ids ids_now(void)
{
	struct user_ids now;

	memset(&now, 0, sizeof(now));
	(void)getresuid(&now.uid[0], &now.uid[1], &now.uid[2]);
	(void)getresgid(&now.gid[0], &now.gid[1], &now.gid[2]);
	return now;
}

void guard_remember_user(struct host *h)
{
	h->guard.user = ids_now();
}

void guard_remember(struct host *h)
{
	struct guard *g = &h->guard;

	g->pid = getpid();
	g->control = id_of(h->control);
	g->log = id_of(h->log);
	g->gate = id_of(h->gate);
	g->null = id_of(h->null);
	(void)sigprocmask(SIG_BLOCK, NULL, &g->mask);
	(void)getrlimit(RLIMIT_NOFILE, &g->nofile);
	guard_remember_user(h);
}

struct plugin *guard_names(struct host *h, char *names, size_t size)
{
	struct plugin *only = NULL;
	size_t count = 0, len = 0;

	names[0] = 0;
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		if (!p->kept || (h->hook != NO_HOOK && p->hooks[h->hook] == NULL))
			continue;
		only = count++ == 0 ? p : NULL;
		if (len < size)
			len += (size_t)snprintf(names + len, size - len, "%s%s", len ? ", " : "",
						p->base);
	}
	return only;
}

/* Tells of a plugin, or of whom it may have been, once. */
static struct plugin *tell(struct host *h, struct plugin *p, enum damage d, const char *what)
{
	char names[256], text[400];

	if (p == NULL)
		p = guard_names(h, names, sizeof(names));
	uint32_t *told = p ? &p->told : &h->guard.told;
	if (*told & d)
		return p;
	*told |= d;
	if (p == NULL)
		snprintf(text, sizeof(text), "one of %s %s", names, what);
	log_warn(h, p, h->hook, p ? what : text);
	return p;
}

/* Ends the process inside the hook: stepd reads from the board who it was and
 * why. There may be nothing else left to tell it by. */
static _Noreturn void give_up(struct host *h, enum fault fault)
{
	uint32_t slot = h->in_task ? h->rank + 1 : 0;

	board_error(h, slot, -(int)fault);
	_exit(1);
}

/* The same for what may have been done before the last plugin of several. */
static _Noreturn void give_up_on(struct host *h, struct plugin *p, enum damage d, const char *what,
				 enum fault fault)
{
	if (p == NULL) {
		p = tell(h, p, d, what);
		(void)board_hook_enter(h, h->in_task ? h->rank + 1 : 0, p ? p->index : NO_PLUGIN,
				       h->hook, h->rank);
	}
	give_up(h, fault);
}

/* A hook returns once. A process that a plugin forked in the host, and that comes
 * back as well, is no second host. In a task the copy may be the task: so work
 * plugins that make a pid namespace, and whose first process never comes back. */
static void end_copy(struct host *h)
{
	if (h->in_task ? !board_claim(h, h->rank + 1) : h->control < 0)
		_exit(0);
}

void guard_check(struct host *h)
{
	end_copy(h);
	/* Past the gate a task needs none of them. */
	if (!h->in_task ? !is(h->control, h->guard.control)
			: h->hook != HOOK_TASK_INIT && !is(h->gate, h->guard.gate))
		give_up(h, FAULT_DESCRIPTORS);
}

/* What is opened next would be there, and plugins would write to it. */
static void check_stdio(struct host *h, struct plugin *p)
{
	bool lost = false;

	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) < 0)
			lost = dup2(h->null, fd) >= 0;
	}
	if (lost)
		tell(h, p, DAMAGE_STDIO, "closed a standard descriptor: it is /dev/null now");
}

/* With SIGCHLD ignored the kernel reaps the tasks, and nobody learns how they ended. */
static void check_sigchld(struct host *h, struct plugin *p)
{
	struct sigaction sa;

	if (sigaction(SIGCHLD, NULL, &sa) < 0 ||
	    (sa.sa_handler != SIG_IGN && !(sa.sa_flags & SA_NOCLDWAIT)))
		return;
	if (sa.sa_handler == SIG_IGN)
		sa.sa_handler = SIG_DFL;
	sa.sa_flags &= ~SA_NOCLDWAIT;
	(void)sigaction(SIGCHLD, &sa, NULL);
	tell(h, p, DAMAGE_SIGCHLD, "ignored SIGCHLD: taken back, or the tasks' ends would be lost");
}

/* The signals that plugins find blocked end the host where they are not, unless
 * the plugin has a handler. */
static void check_mask(struct host *h, struct plugin *p)
{
	sigset_t now, lost;
	bool any = false;

	(void)sigprocmask(SIG_BLOCK, NULL, &now);
	sigemptyset(&lost);
	for (int sig = 1; sig < 32; sig++) {
		struct sigaction sa;

		if (sigismember(&h->guard.mask, sig) != 1 || sigismember(&now, sig) != 0)
			continue;
		if (sigaction(sig, NULL, &sa) < 0 || sa.sa_handler != SIG_DFL)
			continue;
		sigaddset(&lost, sig);
		any = true;
	}
	if (!any)
		return;
	(void)sigprocmask(SIG_BLOCK, &lost, NULL);
	tell(h, p, DAMAGE_MASK, "unblocked signals that would end the host: blocked again");
}

static void check_user(struct host *h, struct plugin *p)
{
	const struct user_ids *want = &h->guard.user;
	struct user_ids now = ids_now();

	if (memcmp(&now, want, sizeof(now)) == 0)
		return;
	(void)!setresuid((uid_t)-1, 0, (uid_t)-1);
	(void)!setresgid(want->gid[0], want->gid[1], want->gid[2]);
	(void)!setresuid(want->uid[0], want->uid[1], want->uid[2]);
	now = ids_now();
	if (memcmp(&now, want, sizeof(now)) != 0)
		give_up_on(h, p, DAMAGE_USER, "gave up the user or group of its process",
			   FAULT_USER);
	tell(h, p, DAMAGE_USER, "changed its user or group: taken back");
}

static void check_nofile(struct host *h, struct plugin *p)
{
	const struct rlimit *want = &h->guard.nofile;
	rlim_t need = h->in_task ? 64 : 64 + 4 * (rlim_t)h->cfg.ntasks;
	struct rlimit now;

	if (getrlimit(RLIMIT_NOFILE, &now) < 0 || now.rlim_cur >= need ||
	    now.rlim_cur >= want->rlim_cur)
		return;
	/* In user_init the host is the user, and root in reserve. Where root is
	 * not almighty the upper limit stays where it was put. */
	uid_t euid = geteuid();
	(void)!seteuid(h->guard.user.uid[0]);
	bool done = setrlimit(RLIMIT_NOFILE, want) == 0;
	(void)!seteuid(euid);
	if (!done)
		give_up_on(h, p, DAMAGE_NOFILE,
			   "lowered the limit of open files below what its process needs",
			   FAULT_NOFILE);
	tell(h, p, DAMAGE_NOFILE,
	     "lowered the limit of open files below what its process needs: taken back");
}

void guard_check_all(struct host *h, struct plugin *p)
{
	const struct guard *g = &h->guard;

	if (p != NULL)
		end_copy(h);
	if (!h->in_task && getpid() != g->pid)
		_exit(0); /* made past fork's handlers */
	if (h->hook == HOOK_TASK_INIT)
		return; /* it is the user's, and as good as exec'd */
	if ((!h->in_task && !is(h->control, g->control)) || !is(h->log, g->log) ||
	    !is(h->gate, g->gate) || !is(h->null, g->null))
		give_up_on(h, p, DAMAGE_FILES, "closed descriptors of its process",
			   FAULT_DESCRIPTORS);
	/* Those that stepd handed over: who closes some closes all above a number. */
	if (h->nfds > 0 &&
	    (fcntl(h->fds[0], F_GETFD) < 0 || fcntl(h->fds[h->nfds - 1], F_GETFD) < 0))
		give_up_on(h, p, DAMAGE_FILES, "closed descriptors of its process",
			   FAULT_DESCRIPTORS);
	check_user(h, p);
	check_nofile(h, p);
	if (h->in_task)
		return; /* on its way to exec it sets the others anew */
	check_stdio(h, p);
	check_sigchld(h, p);
	check_mask(h, p);
	user_rearm();
}
