// SPDX-License-Identifier: Apache-2.0
/* Waiting for the tasks: by pidfd, and for no other process. Plugins have
 * children of their own, for which they wait themselves. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

#define CONTROL_EVENT UINT64_MAX
#define EPILOG_EVENT  (UINT64_C(1) << 32) /* and the rank */

/* The wait status for siginfo's fields. */
static int raw_status(const siginfo_t *si)
{
	switch (si->si_code) {
	case CLD_EXITED:
		return (si->si_status & 0xff) << 8;
	case CLD_DUMPED:
		return si->si_status | 0x80;
	default:
		return si->si_status;
	}
}

/* Names of a task's environment that Slurm has in task_exit (traces/srun3.tsv);
 * the others are the task's alone. */
static bool in_exit_env(const char *entry)
{
	static const char *const names[] = {
		"SLURM_NODEID=",    "SLURM_PROCID=", "SLURM_LOCALID=", "SLURM_LAUNCH_NODE_IPADDR=",
		"SLURMD_NODENAME=",
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
		if (strncmp(entry, names[i], strlen(names[i])) == 0)
			return true;
	}
	return false;
}

static void set_exit_env(struct host *h, uint32_t rank)
{
	const struct list *lists[] = {&step_common(&h->step)->env, &h->step.ranks[rank].env};

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		for (uint32_t at = lists[i]->first; at != NO_ITEM; at = h->step.items[at].next) {
			if (in_exit_env(h->step.items[at].text))
				env_put(&h->env, h->step.items[at].text);
		}
	}
	for (size_t i = 0; i < h->step.nexit_env; i++)
		env_put(&h->env, h->step.exit_env[i]);
}

static uint64_t microseconds(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_usec;
}

/* Room for /proc/PID/io: seven numbers with their names. */
#define IO_TEXT_MAX 512

/* What a process has used, as far as the kernel reports it at its end. */
struct used {
	bool known; /* ru is the kernel's */
	struct rusage ru;
	char io[IO_TEXT_MAX];
};

static void reply_exit(struct host *h, uint32_t rank, int status, const struct used *u)
{
	uint8_t buf[128 + IO_TEXT_MAX];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_EXIT);
	wr_u32(&w, rank);
	wr_i32(&w, status);
	wr_u32(&w, u->known);
	wr_u64(&w, microseconds(u->ru.ru_utime));
	wr_u64(&w, microseconds(u->ru.ru_stime));
	wr_u64(&w, (uint64_t)u->ru.ru_maxrss);
	wr_u64(&w, (uint64_t)u->ru.ru_minflt);
	wr_u64(&w, (uint64_t)u->ru.ru_majflt);
	wr_u64(&w, (uint64_t)u->ru.ru_inblock);
	wr_u64(&w, (uint64_t)u->ru.ru_oublock);
	wr_str(&w, u->io, sizeof(u->io));
	struct iovec iov = {buf, w.len};
	(void)packet_send(h->control, &iov, 1, NULL, 0); /* end of file tells us next */
}

/* Reads a file of a process into text; false if there is none, or nothing in it. */
static bool read_proc(const struct host *h, pid_t pid, const char *name, char *text, size_t size)
{
	char path[32];

	snprintf(path, sizeof(path), "%d/%s", pid, name);
	_cleanup_close_ int fd = openat(h->proc, path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : RETRY(read(fd, text, size - 1));
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* Whether the process, which is dead and not reaped, had ever exec'd. */
static bool had_execed(const struct host *h, pid_t pid)
{
	char text[512];
	unsigned long flags;

	if (!read_proc(h, pid, "stat", text, sizeof(text)))
		return false;
	/* The name may hold anything, a parenthesis too (proc_pid_stat(5)). */
	const char *rest = strrchr(text, ')');
	if (rest == NULL || sscanf(rest, ") %*c %*d %*d %*d %*d %*d %lu", &flags) != 1)
		return false;
	return (flags & 0x40) == 0; /* PF_FORKNOEXEC of the kernel's sched.h */
}

/* A hook that executes another program itself never says so, and stepd, which
 * sees its pipe close, may come too late to look. */
static void note_exec(struct host *h, uint32_t rank)
{
	if (!board_at_exec(h, rank + 1) && had_execed(h, h->tasks[rank].pid))
		board_execed(h, rank + 1);
}

/* No status is better than one that was made up. */
static void lose_task(struct host *h, uint32_t rank, struct outcome *out)
{
	char names[160];
	int error = errno;

	h->tasks[rank].reaped = true;
	guard_names(h, names, sizeof(names));
	fail(out, error, "cannot learn how task %u ended: a plugin may have waited for it: %s",
	     h->cfg.global_ids[rank], names);
}

/* A task has ended, and its epilog if it has one: task_exit sees it before it is
 * reaped. */
static void end_task(struct host *h, uint32_t rank, struct outcome *out)
{
	struct task *t = &h->tasks[rank];
	siginfo_t si = {0};
	struct used used = {0};
	int status;

	t->reaped = true;
	if (RETRY(waitid((idtype_t)P_PIDFD, (id_t)t->pidfd, &si, WEXITED | WNOWAIT)) < 0) {
		lose_task(h, rank, out);
	} else {
		h->exit_status = raw_status(&si);
		note_exec(h, rank);
		/* The bytes that it has read and written go with the zombie. */
		read_proc(h, t->pid, "io", used.io, sizeof(used.io));
		set_exit_env(h, rank);
		if (!host_is_extern(h))
			stack_call(h, HOOK_TASK_EXIT, rank, out);
		used.known = RETRY(wait4(t->pid, &status, 0, &used.ru)) >= 0;
		if (!used.known)
			status = h->exit_status; /* the hook reaped it; its usage is lost */
		reply_exit(h, rank, status, &used);
	}
	close(t->pidfd);
	t->pidfd = -1;
}

static bool watch(int epoll, int fd, uint64_t what)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.u64 = what};

	return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev) == 0;
}

/* Watches the control channel and every task; the number of tasks, or -1. */
static long watch_all(struct host *h, int epoll, struct outcome *out)
{
	long left = 0;

	if (epoll < 0 || !watch(epoll, h->control, CONTROL_EVENT))
		return -1;
	for (size_t i = 0; i < h->cfg.ntasks; i++) {
		struct task *t = &h->tasks[i];

		if (t->pid == 0 || t->reaped)
			continue;
		if (t->pidfd < 0)
			t->pidfd = (int)syscall(SYS_pidfd_open, t->pid, 0);
		/* EINVAL (before Linux 6.15): the number still belongs to a group. */
		if (t->pidfd < 0 && (errno == ESRCH || errno == EINVAL)) {
			lose_task(h, (uint32_t)i, out);
			continue;
		}
		if (t->pidfd < 0 || !(t->epilog ? watch(epoll, t->epilog_fd, EPILOG_EVENT | i)
						: watch(epoll, t->pidfd, i)))
			return -1;
		left++;
	}
	return left;
}

/* A task's process or its epilog has ended. Returns how many tasks are through. */
static long ended(struct host *h, int epoll, uint64_t what, struct outcome *out)
{
	uint32_t rank = (uint32_t)what;
	struct task *t = &h->tasks[rank];

	/* Closing ours is not enough: stepd holds the same description. */
	(void)epoll_ctl(epoll, EPOLL_CTL_DEL, t->epilog ? t->epilog_fd : t->pidfd, NULL);
	if (what & EPILOG_EVENT) {
		epilog_end(h, rank);
	} else {
		set_exit_env(h, rank);
		if (epilog_begin(h, rank) && watch(epoll, t->epilog_fd, EPILOG_EVENT | rank))
			return 0;
		if (t->epilog != 0)
			epilog_end(h, rank);
	}
	end_task(h, rank, out);
	return 1;
}

/* Returns true when every task has been reaped, or it cannot be done, which out
 * tells; false when a command waits, or stepd is gone. */
bool command_wait(struct host *h, struct outcome *out)
{
	_cleanup_close_ int epoll = epoll_create1(EPOLL_CLOEXEC);
	long left = watch_all(h, epoll, out);

	if (left < 0) {
		fail(out, errno, "cannot watch the tasks");
		return true;
	}
	while (left > 0) {
		struct epoll_event ev[64];
		int n = (int)RETRY(epoll_wait(epoll, ev, (int)ARRAY_SIZE(ev), -1));

		if (n < 0) {
			fail(out, errno, "cannot wait for the tasks");
			return true;
		}
		for (int i = 0; i < n; i++) {
			if (ev[i].data.u64 == CONTROL_EVENT)
				return false;
		}
		for (int i = 0; i < n; i++)
			left -= ended(h, epoll, ev[i].data.u64, out);
	}
	return true;
}
