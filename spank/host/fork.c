// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

/* Tasks in one REP_TASKS: two descriptors for each. */
#define BATCH_MAX 16

struct batch {
	uint32_t n;
	uint32_t ranks[BATCH_MAX];
	int fds[2 * BATCH_MAX]; /* pidfd, exec pipe */
};

/* Tells stepd of the batch. Ours go at once, as every fork and exec pays for every
 * descriptor that is open; WAIT opens pidfds of its own, which it can while
 * no other process reaps. */
static bool batch_send(struct host *h, struct batch *b, struct outcome *out)
{
	uint8_t buf[16 + 8 * BATCH_MAX];
	struct writer w = wr_init(buf, sizeof(buf));

	if (b->n == 0)
		return true;
	wr_u32(&w, REP_TASKS);
	wr_u32(&w, b->n);
	for (uint32_t i = 0; i < b->n; i++) {
		wr_u32(&w, b->ranks[i]);
		wr_i32(&w, h->tasks[b->ranks[i]].pid);
	}
	struct iovec iov = {buf, w.len};
	int rc = packet_send(h->control, &iov, 1, b->fds, (size_t)b->n * 2);
	int error = errno;
	for (uint32_t i = 0; i < 2 * b->n; i++)
		close(b->fds[i]);
	b->n = 0;
	return rc == 0 || fail(out, error, "cannot tell stepd of the tasks");
}

static bool fork_one(struct host *h, uint32_t rank, struct batch *b, struct outcome *out)
{
	int pipe[2];

	if (pipe2(pipe, O_CLOEXEC) < 0)
		return fail(out, errno, "cannot make the exec pipe of task %u",
			    h->cfg.global_ids[rank]);
	h->forked_ours = true;
	/* glibc's, for its handlers and the thread id of robust mutexes; from the
	 * one thread that unshare and setns in a hook have moved. */
	pid_t pid = fork();
	h->forked_ours = false;
	if (pid == 0) {
		close(pipe[0]);
		h->exec_pipe = pipe[1];
		task_main(h, rank);
	}
	int error = errno;
	close(pipe[1]);
	if (pid < 0) {
		close(pipe[0]);
		return fail(out, error, "cannot fork task %u%s", h->cfg.global_ids[rank],
			    error == ENOMEM && h->pid_ns >= 0
				    ? ": process 1 of the job's pid namespace may have ended"
				    : "");
	}
	h->tasks[rank].pid = pid;
	/* Into the group of the first task from here: the gate does not wait for a slow
	 * child to join, and the group is gone when all in it have ended. One with a
	 * terminal makes a session, which the leader of a group cannot. */
	if (!task_has_terminal(h, rank)) {
		if (h->group == 0)
			h->group = pid;
		(void)setpgid(pid, h->group);
	}
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		error = errno;
		close(pipe[0]);
		return fail(out, error, "cannot open a pidfd for task %u", h->cfg.global_ids[rank]);
	}
	b->ranks[b->n] = rank;
	b->fds[2 * b->n] = pidfd;
	b->fds[2 * b->n + 1] = pipe[0];
	b->n++;
	return b->n < BATCH_MAX || batch_send(h, b, out);
}

/* A file that all tasks write to is emptied by the first of them: one that opens it
 * late would take away what others have written. They wait for a byte that each
 * sees and none takes, or for the end of all who might write it. */
static bool begin_emptying(struct host *h, struct outcome *out)
{
	bool shared = false;

	for (int fd = 0; fd <= 2; fd++) {
		struct stream s = step_common(&h->step)->stream[fd];

		shared = shared || (s.kind == STREAM_FILE && (s.index & O_TRUNC) != 0);
	}
	if (!shared || h->cfg.ntasks < 2)
		return true;
	return pipe2(h->emptied, O_CLOEXEC) == 0 ||
	       fail(out, errno, "cannot make the pipe of the tasks' common files");
}

static void close_end(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

/* Ours are copies: while we hold a pipe's end its reader sees no end of file. */
static void close_table(struct host *h)
{
	for (size_t i = 0; i < h->nfds; i++)
		close(h->fds[i]);
	free(h->fds);
	h->fds = NULL;
	h->nfds = 0;
}

void command_fork(struct host *h, struct outcome *out)
{
	struct batch *b = must_zero(1, sizeof(*b));
	bool ok = begin_emptying(h, out);

	/* What plugins printed and did not flush would come once more from every task. */
	fflush(NULL);
	if (ok && !container_births(h, true))
		ok = fail(out, errno, "cannot enter the pid namespace of the job");
	for (uint32_t rank = 0; ok && rank < h->cfg.ntasks; rank++) {
		ok = fork_one(h, rank, b, out);
		close_end(&h->emptied[1]); /* the first task alone has it */
	}
	close_end(&h->emptied[0]);
	if (!container_births(h, false))
		fail(out, errno, "cannot leave the pid namespace of the job");
	h->pids_known = true;
	/* Also after a failure: stepd must know whom to kill. */
	batch_send(h, b, out);
	free(b);
	close_table(h);
	user_reclaim(out);
	if (chdir("/") < 0)
		fail(out, errno, "cannot change directory to \"/\"");
}
