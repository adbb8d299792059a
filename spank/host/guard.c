// SPDX-License-Identifier: Apache-2.0
/* What a plugin does to the host that calls it: looked at after its hooks, so
 * that the one that did it is named. What would keep the host from its work is
 * undone, and reported once; where that cannot be done the host ends inside the
 * hook, as if the plugin had crashed it. All else that a plugin may change of
 * its process is left as in Slurm: its directory, umask, handlers, other limits.
 *
 * A step of 20 plugins and 64 tasks calls 5,000 hooks, so a system call counts. After
 * each plugin there are five (guard_check), from the second task on one (guard_channel):
 * what they find has a name. After the chain comes the rest (guard_check_all), and
 * where several plugins were called, it was one of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* What was reported, a bit each. */
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

static bool may_have_done_it(const struct host *h, const struct plugin *p)
{
	if (h->hook == HOOK_LOAD)
		return true; /* a constructor */
	return p->kept && (h->hook == NO_HOOK || p->hooks[h->hook] != NULL);
}

struct plugin *guard_names(struct host *h, char *names, size_t size)
{
	struct plugin *only = NULL;
	size_t count = 0, len = 0;

	names[0] = 0;
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		struct plugin *p = &h->plugins[i];

		if (!may_have_done_it(h, p))
			continue;
		only = count++ == 0 ? p : NULL;
		if (len < size)
			len += (size_t)snprintf(names + len, size - len, "%s%s", len ? ", " : "",
						p->base);
	}
	return only;
}

/* Reports what a plugin did, or which plugins may have done it, once. */
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
 * why. No other way to report it may be left. */
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

/* What is opened next would be there, and plugins would write to it. */
static void mend_stdio(struct host *h, struct plugin *p, int fd)
{
	if (dup2(h->null, fd) >= 0)
		tell(h, p, DAMAGE_STDIO, "closed a standard descriptor: it is /dev/null now");
}

static _Noreturn void lose_files(struct host *h, struct plugin *p)
{
	give_up_on(h, p, DAMAGE_FILES, "closed descriptors of its process", FAULT_DESCRIPTORS);
}

/* Whether all are open that must be: one system call for all of them. Of the
 * descriptors that stepd handed over, the first and the last: a plugin that closes some
 * closes all above a number. False where one of ours is ready to be read: it may be
 * another file, as those always are. */
static bool check_open(struct host *h, struct plugin *p)
{
	const int own[] = {h->in_task ? -1 : h->control,
			   h->log,
			   h->gate,
			   h->null,
			   h->nfds > 0 ? h->fds[0] : -1,
			   h->nfds > 0 ? h->fds[h->nfds - 1] : -1};
	struct pollfd fds[3 + ARRAY_SIZE(own)];

	/* poll passes over -1. A task's first three are put in place later. */
	for (int i = 0; i < 3; i++)
		fds[i] = (struct pollfd){.fd = h->in_task ? -1 : i};
	for (size_t i = 0; i < ARRAY_SIZE(own); i++)
		fds[3 + i] = (struct pollfd){.fd = own[i]};
	/* No command comes in a hook, but in one that WAIT calls, and no byte at
	 * the gate before task_init. */
	struct pollfd *channel = &fds[h->in_task ? 5 : 3];
	channel->events = POLLIN;
	if (poll(fds, ARRAY_SIZE(fds), 0) <= 0)
		return true;
	for (size_t i = 3; i < ARRAY_SIZE(fds); i++) {
		if (fds[i].revents & POLLNVAL)
			lose_files(h, p);
	}
	for (int fd = 0; fd < 3; fd++) {
		if (fds[fd].revents & POLLNVAL)
			mend_stdio(h, p, fd);
	}
	return (channel->revents & POLLIN) == 0;
}

/* With SIGCHLD ignored the kernel reaps the tasks, and their exit statuses are lost. */
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

/* glibc asks by prlimit, which looks up a process and its rights: twice the time. */
static int limit_of_files(struct rlimit *now)
{
#if defined(SYS_getrlimit) && defined(__LP64__)
	return (int)syscall(SYS_getrlimit, RLIMIT_NOFILE, now);
#else
	return getrlimit(RLIMIT_NOFILE, now);
#endif
}

static void check_nofile(struct host *h, struct plugin *p)
{
	const struct rlimit *want = &h->guard.nofile;
	rlim_t need = h->in_task ? 64 : 64 + 4 * (rlim_t)h->cfg.ntasks;
	struct rlimit now;

	if (limit_of_files(&now) < 0 || now.rlim_cur >= need || now.rlim_cur >= want->rlim_cur)
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

/* Past the gate a task is the user's, and as good as exec'd. */
static bool is_past_gate(const struct host *h)
{
	return h->hook == HOOK_TASK_INIT;
}

void guard_channel(struct host *h)
{
	end_copy(h);
	if (!is_past_gate(h) && fcntl(h->in_task ? h->gate : h->control, F_GETFD) < 0)
		give_up(h, FAULT_DESCRIPTORS);
}

/* What costs more to look at. An option's callback has no chain after it. */
static void check_rest(struct host *h, struct plugin *p)
{
	const struct guard *g = &h->guard;

	if ((!h->in_task && !is(h->control, g->control)) || !is(h->log, g->log) ||
	    !is(h->gate, g->gate) || !is(h->null, g->null))
		lose_files(h, p);
	check_user(h, p);
}

void guard_check(struct host *h, struct plugin *p)
{
	const struct guard *g = &h->guard;

	end_copy(h);
	if (is_past_gate(h))
		return;
	/* Another file in its place: who swaps one swaps all. */
	if (!check_open(h, p) && (h->in_task ? !is(h->gate, g->gate) : !is(h->control, g->control)))
		lose_files(h, p);
	if (geteuid() != g->user.uid[1])
		check_user(h, p);
	check_nofile(h, p);
	if (!h->in_task) {
		check_sigchld(h, p);
		check_mask(h, p);
	}
	if (h->hook == HOOK_OPTION)
		check_rest(h, p);
}

void guard_check_all(struct host *h)
{
	if (!h->in_task && getpid() != h->guard.pid)
		_exit(0); /* made past fork's handlers */
	if (is_past_gate(h))
		return;
	(void)check_open(h, NULL);
	check_rest(h, NULL);
	check_nofile(h, NULL);
	if (h->in_task)
		return; /* on its way to exec it sets the others anew */
	check_sigchld(h, NULL);
	check_mask(h, NULL);
	user_rearm();
}
