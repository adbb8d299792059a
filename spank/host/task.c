// SPDX-License-Identifier: Apache-2.0
/* A task from its fork to its exec, in the order of Slurm (lifecycle, C.25 and
 * C.29). It leaves by _exit alone: the host's atexit handlers are not its own. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "stack.h"
#include "util.h"

/* Ends a task that cannot be exec'd. */
_Noreturn void task_fail(struct host *h, enum stage stage, int error, const char *object,
			 int status)
{
	task_fail_why(h, stage, error, object, "", status);
}

_Noreturn void task_fail_why(struct host *h, enum stage stage, int error, const char *object,
			     const char *why, int status)
{
	board_error(h, h->rank + 1, error);
	log_fail(h, h->rank, stage, error, object, why);
	_exit(status);
}

static void enter(struct host *h, enum stage stage)
{
	board_stage(h, h->rank + 1, stage);
}

/* Root again, from the user that the fork left in effect. */
static void reclaim(struct host *h)
{
	struct outcome out = {0};

	if (!user_reclaim(&out))
		task_fail(h, STAGE_FORKED, out.error, out.what, 1);
	/* setgroups was done in the host; here it is too late to notice after
	 * task_init_privileged, which may add groups of its own. */
	if (!user_groups_are(h->cfg.groups, h->cfg.ngroups))
		task_fail(h, STAGE_FORKED, EPERM, "the groups are not the user's", 1);
}

static void set_oom_score(struct host *h)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d", h->cfg.oom_score);

	if (!h->cfg.has_oom_score)
		return;
	_cleanup_close_ int fd = openat(h->proc, "self/oom_score_adj", O_RDWR | O_CLOEXEC);
	char now[16] = "";
	if (fd >= 0 && read(fd, now, sizeof(now) - 1) > 0 && atoi(now) == h->cfg.oom_score)
		return;
	/* Lowering it needs CAP_SYS_RESOURCE, which a container's root may lack. */
	if (fd < 0 || pwrite(fd, text, (size_t)len, 0) != len)
		log_text(LEVEL_VERBOSE, "cannot set oom_score_adj to %s: %s", text,
			 strerror(errno));
}

/* The job's directory, with the user's rights: a root that follows the user's
 * paths can be led where the user may not go. */
static void chdir_as_user(struct host *h)
{
	int error;

	if (setegid(h->cfg.gid) < 0 || seteuid(h->cfg.uid) < 0)
		task_fail(h, STAGE_JOIN, errno, "cannot take the user's rights", 1);
	if (!user_chdir(&h->cfg, &error) && !h->chdir_failed && h->rank == 0)
		log_chdir(&h->cfg, error);
	if (seteuid(0) < 0 || setegid(0) < 0)
		task_fail(h, STAGE_JOIN, errno, "cannot become root again", 1);
}

static void join(struct host *h)
{
	if (h->cfg.join_ns != JOIN_TASKS)
		return;
	enter(h, STAGE_JOIN);
	if (!container_enter(h, JOIN_TASKS))
		task_fail(h, STAGE_JOIN, errno, "the job's mount namespace", 1);
	/* That has put us at its root; task_init_privileged is called in the job's directory. */
	chdir_as_user(h);
}

static void run_hook(struct host *h, enum stage stage, enum hook hook)
{
	struct outcome out = {0};
	char object[320];

	enter(h, stage);
	if (stack_call(h, hook, h->rank, &out)) {
		/* To where standard output leads now; exec would lose it. */
		fflush(NULL);
		return;
	}
	snprintf(object, sizeof(object), "%s: %s()", h->plugins[out.plugin].base, hook_name(hook));
	task_fail(h, stage, 0, object, 1);
}

static void become_user(struct host *h)
{
	const char *what;
	int error;

	enter(h, STAGE_BECOME_USER);
	if (!user_become(h, &what))
		task_fail(h, STAGE_BECOME_USER, errno, what, 1);
	keyring_link_user();
	/* A hook may have moved us. A failure was reported before. */
	(void)user_chdir(&h->cfg, &error);
	if (h->step.ranks[h->rank].cwd != NULL && !user_enter(h->step.ranks[h->rank].cwd))
		task_fail(h, STAGE_BECOME_USER, errno, h->step.ranks[h->rank].cwd, 1);
}

/* The command of a task that has its own; what plugins put before argv from here
 * on comes before it. */
static void own_argv(struct host *h)
{
	const struct list *list = &h->step.ranks[h->rank].argv;
	size_t n = 0;

	if (list->first == NO_ITEM)
		return;
	for (uint32_t at = list->first; at != NO_ITEM; at = h->step.items[at].next)
		n++;
	h->argv = must_zero(n + 1, sizeof(*h->argv));
	h->argc = 0;
	for (uint32_t at = list->first; at != NO_ITEM; at = h->step.items[at].next)
		h->argv[h->argc++] = h->step.items[at].text;
}

/* What a plugin has sent to its process group, or to itself by a timer, has waited
 * until now and is for no task. What stepd has sent is for the task: the gate, which
 * waits for no slow child, may be open, and another task may have ended the step. In a
 * pid namespace of a plugin's it is process 0. */
static void take_pending(const struct host *h, sigset_t *sent)
{
	const struct sigaction ignore = {.sa_handler = SIG_IGN};
	const struct timespec now = {0};
	sigset_t pending, one;
	siginfo_t info;

	sigemptyset(sent);
	(void)sigpending(&pending);
	for (int sig = 1; sig < NSIG; sig++) {
		if (sigismember(&pending, sig) != 1)
			continue;
		sigemptyset(&one);
		sigaddset(&one, sig);
		if (RETRY(sigtimedwait(&one, &info, &now)) == sig && info.si_code == SI_USER &&
		    (info.si_pid == h->stepd || info.si_pid == 0))
			sigaddset(sent, sig);
		/* The rest of a queue, and what a timer sends again at once. */
		(void)sigaction(sig, &ignore, NULL);
	}
}

static void reset_signals(const struct host *h)
{
	sigset_t sent, all, none;

	sigfillset(&all); /* of signals that a hook has let through, too */
	(void)sigprocmask(SIG_SETMASK, &all, NULL);
	take_pending(h, &sent);
	signals_default();
	if (h->cfg.nplugins > 0)
		crash_catch(); /* till execve takes it away */
	for (int sig = 1; sig < NSIG; sig++) {
		if (sigismember(&sent, sig) == 1)
			(void)kill(getpid(), sig);
	}
	sigemptyset(&none);
	(void)sigprocmask(SIG_SETMASK, &none, NULL);
}

/* Waits for the byte that says that every task is tracked, and leaves it there:
 * a process that a plugin has forked, and that comes here, too, takes it from
 * no task. End of file: the step is over before it began. */
static void wait_gate(struct host *h)
{
	struct pollfd gate = {.fd = h->gate, .events = POLLIN};

	enter(h, STAGE_GATE);
	if (RETRY(poll(&gate, 1, -1)) != 1 || !(gate.revents & POLLIN))
		_exit(1);
}

bool task_has_terminal(const struct host *h, uint32_t rank)
{
	return step_stream(&h->step, rank, 0).kind == STREAM_TERMINAL;
}

/* All tasks are one process group, led by the first of them: the parent has put
 * each into it, unless a hook or the end of the first came before. One that has a
 * terminal leads a session of its own instead. A hook that made a session has made
 * its group, too. */
static void join_group(struct host *h)
{
	if (task_has_terminal(h, h->rank)) {
		if (setsid() < 0 && getsid(0) != getpid())
			task_fail(h, STAGE_GATE, errno, "a session for the step's terminal", 1);
		return;
	}
	/* In the job's pid namespace the host's number means nothing. The parent moves us
	 * into the group also after we have made one. */
	if (h->pid_ns >= 0) {
		if (getpgrp() == 0 && setpgid(0, 0) < 0)
			task_fail(h, STAGE_GATE, errno, "the step's process group", 1);
		return;
	}
	if (setpgid(0, h->group) < 0 && setpgid(0, 0) < 0 && getsid(0) != getpid())
		task_fail(h, STAGE_GATE, errno, "the step's process group", 1);
}

static void set_task_env(struct host *h)
{
	const struct list *lists[] = {&step_common(&h->step)->env, &h->step.ranks[h->rank].env};
	char number[16];

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (uint32_t at = lists[i]->first; at != NO_ITEM; at = h->step.items[at].next)
			env_put(&h->env, h->step.items[at].text);
	}
	snprintf(number, sizeof(number), "%d", getpid());
	env_set(&h->env, "SLURM_TASK_PID", number);
	for (uint32_t at = h->step.ranks[h->rank].fds.first; at != NO_ITEM;
	     at = h->step.items[at].next) {
		snprintf(number, sizeof(number), "%d", h->fds[h->step.items[at].index]);
		env_set(&h->env, h->step.items[at].text, number);
	}
}

/* By the task itself: no other process can. As the user, who may do so. */
static void set_mem_policy(struct host *h)
{
	const struct mem_policy *p = step_mem_policy(&h->step, h->rank);

	if (p == NULL)
		return;
	enter(h, STAGE_MEM_POLICY);
	/* The kernel takes one bit less than the given size. */
	if (syscall(SYS_set_mempolicy, (int)p->mode, p->words > 0 ? p->nodes : NULL,
		    p->words > 0 ? 64ul * p->words + 1 : 0ul) < 0)
		task_fail(h, STAGE_MEM_POLICY, errno, "the memory nodes of --mem-bind", 1);
}

/* The idle process of an extern step: root's, in the step's places, and no plugin's hook is
 * called for it (lifecycle, E). */
static _Noreturn void task_idle(struct host *h)
{
	static const int ignored[] = {SIGHUP,  SIGINT,	SIGQUIT,   SIGUSR1, SIGUSR2,
				      SIGALRM, SIGPIPE, SIGVTALRM, SIGTSTP, SIGXCPU};

	own_argv(h);
	set_oom_score(h);
	enter(h, STAGE_STDIO);
	join_group(h);
	reset_signals(h);
	/* A signal that a user sends to all of the job is for others: what ends this one ends the
	 * sessions in the step. Ignored signals stay so over execve. */
	for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
		(void)signal(ignored[i], SIG_IGN);
	task_stdio(h);
	wait_gate(h);
	env_init(&h->env); /* what a user may have set is not for a program of root's */
	task_exec(h);
}

bool host_is_extern(const struct host *h)
{
	return h->cfg.context == S_CTX_REMOTE && h->cfg.step_id == EXTERN_STEP;
}

_Noreturn void task_main(struct host *h, uint32_t rank)
{
	h->in_task = true;
	h->rank = rank;
	enter(h, STAGE_FORKED);
	if (host_is_extern(h))
		task_idle(h);
	own_argv(h);
	reclaim(h);
	set_oom_score(h);
	join(h);
	run_hook(h, STAGE_PRIVILEGED, HOOK_TASK_INIT_PRIVILEGED);
	become_user(h);
	enter(h, STAGE_STDIO);
	join_group(h);
	reset_signals(h);
	task_stdio(h);
	wait_gate(h);
	set_task_env(h);
	set_mem_policy(h);
	run_hook(h, STAGE_TASK_INIT, HOOK_TASK_INIT);
	task_prologs(h);
	enter(h, STAGE_LIMITS);
	limits_apply(h);
	task_exec(h);
}
