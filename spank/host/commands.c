// SPDX-License-Identifier: Apache-2.0
#define _GNU_SOURCE
#include <sched.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "util.h"

bool fail(struct outcome *out, int error, const char *format, ...)
{
	va_list ap;

	if (out->rc != 0)
		return false;
	out->rc = -1;
	out->error = error;
	out->plugin = NO_PLUGIN;
	out->hook = NO_HOOK;
	out->rank = NO_RANK;
	va_start(ap, format);
	vsnprintf(out->what, sizeof(out->what), format, ap);
	va_end(ap);
	return false;
}

static void close_all(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

static void command_fds(struct host *h, const int *fds, size_t n, struct outcome *out)
{
	if (n > HOST_FD_TABLE_MAX - h->nfds) {
		close_all(fds, n);
		fail(out, EMFILE, "cannot keep %zu descriptors", h->nfds + n);
		return;
	}
	h->fds = must_grow(h->fds, h->nfds + n, sizeof(*h->fds));
	memcpy(h->fds + h->nfds, fds, n * sizeof(*fds));
	h->nfds += n;
}

static bool read_keep(struct host *h, struct reader *args, struct outcome *out)
{
	uint32_t count = rd_u32(args);

	if (args->bad || count != h->cfg.nplugins || args->left != count)
		return fail(out, EPROTO, "cannot initialize: keep is malformed");
	for (uint32_t i = 0; i < count; i++) {
		h->plugins[i].kept = args->p[i] != 0;
		if (h->plugins[i].kept && h->plugins[i].dl == NULL)
			return fail(out, EPROTO, "cannot keep \"%s\": it is not loaded",
				    h->plugins[i].base);
	}
	return true;
}

static void command_init(struct host *h, struct reader *args, struct outcome *out)
{
	if (!read_keep(h, args, out))
		return;
	/* The whole step in the job's container: from the first hook on, so that
	 * what plugins mount is the tasks', too. */
	if (h->cfg.join_ns == JOIN_HOST && (setns(h->job_ns, CLONE_NEWNS) < 0 || chdir("/") < 0)) {
		fail(out, errno, "cannot join the job's container");
		return;
	}
	for (size_t i = 0; i < h->cfg.nplugins; i++) {
		if (h->plugins[i].kept)
			options_load_table(h, &h->plugins[i]);
	}
	if (!stack_call(h, HOOK_INIT, NO_RANK, out))
		return;
	options_call(h);
	stack_call(h, HOOK_INIT_POST_OPT, NO_RANK, out);
}

/* What plugins write to standard error reaches the user from here to the last task's end. */
static bool stderr_of_rank0(struct host *h, struct outcome *out)
{
	struct stream s = step_stream(&h->step, 0, 2);

	if (s.kind == STREAM_SAME)
		s = step_stream(&h->step, 0, 1);
	if (dup2(s.kind == STREAM_FD ? h->fds[s.index] : h->null, 2) < 0)
		return fail(out, errno, "cannot take the first task's standard error");
	return true;
}

static void command_user_init(struct host *h, struct outcome *out)
{
	int error;

	if (user_drop(h, out) && stderr_of_rank0(h, out)) {
		if (!user_chdir(&h->cfg, &error)) {
			h->chdir_failed = true;
			log_chdir(&h->cfg, error);
		}
		if (stack_call(h, HOOK_USER_INIT, NO_RANK, out))
			return; /* the forks start from here */
	}
	user_reclaim(out);
	if (chdir("/") < 0)
		fail(out, errno, "cannot change directory to \"/\"");
}

static void command_post_fork(struct host *h, struct outcome *out)
{
	for (uint32_t rank = 0; rank < h->cfg.ntasks; rank++) {
		if (h->tasks[rank].pid != 0 && !stack_call(h, HOOK_TASK_POST_FORK, rank, out))
			return;
	}
}

static void command_exit(struct host *h, struct outcome *out)
{
	dup2(h->null, 2);
	/* Measured: a stack that failed in init or init_post_opt has no exit. */
	if (h->done & 1u << CMD_INIT)
		stack_call(h, HOOK_EXIT, NO_RANK, out);
}

/* A command is legal once, after the one that it needs. */
static bool in_order(const struct host *h, uint32_t cmd)
{
	static const uint32_t needs[] = {
		[CMD_SETUP] = 0,
		[CMD_LOAD] = CMD_SETUP,
		[CMD_INIT] = CMD_LOAD,
		[CMD_FDS] = CMD_SETUP,
		[CMD_STEP] = CMD_SETUP,
		[CMD_USER_INIT] = CMD_INIT,
		[CMD_FORK] = CMD_USER_INIT,
		[CMD_POST_FORK] = CMD_FORK,
		[CMD_WAIT] = CMD_USER_INIT,
		[CMD_EXIT] = CMD_SETUP,
	};

	if (cmd == 0 || cmd >= ARRAY_SIZE(needs))
		return false;
	if ((h->done & 1u << cmd) != 0 && cmd != CMD_FDS && cmd != CMD_WAIT)
		return false;
	if (cmd == CMD_USER_INIT && (h->done & 1u << CMD_STEP) == 0)
		return false;
	return needs[cmd] == 0 || (h->done & 1u << needs[cmd]) != 0;
}

bool command_run(struct host *h, uint32_t cmd, struct reader *args, int *fds, size_t nfds,
		 struct outcome *out)
{
	bool takes_fds = cmd == CMD_SETUP || cmd == CMD_FDS || cmd == CMD_STEP;
	bool takes_args = cmd == CMD_SETUP || cmd == CMD_INIT;

	if (!in_order(h, cmd) || (nfds > 0 && !takes_fds) || (args->left > 0 && !takes_args)) {
		close_all(fds, nfds);
		fail(out, EPROTO, "cannot carry out command %u: unknown or out of order", cmd);
		return true;
	}
	switch (cmd) {
	case CMD_SETUP:
		command_setup(h, args, fds, nfds, out);
		break;
	case CMD_LOAD:
		stack_load(h);
		break;
	case CMD_INIT:
		command_init(h, args, out);
		break;
	case CMD_FDS:
		command_fds(h, fds, nfds, out);
		break;
	case CMD_STEP:
		command_step(h, fds, nfds, out);
		break;
	case CMD_USER_INIT:
		command_user_init(h, out);
		break;
	case CMD_FORK:
		command_fork(h, out);
		break;
	case CMD_POST_FORK:
		command_post_fork(h, out);
		break;
	case CMD_WAIT:
		if (!command_wait(h, out))
			return false;
		break;
	default:
		command_exit(h, out);
		break;
	}
	if (out->rc == 0)
		h->done |= 1u << cmd;
	return true;
}

void reply_done(struct host *h, uint32_t cmd, const struct outcome *out)
{
	uint8_t buf[512];
	struct writer w = wr_init(buf, sizeof(buf));

	wr_u32(&w, REP_DONE);
	wr_u32(&w, cmd);
	wr_i32(&w, out->rc);
	wr_i32(&w, out->error);
	wr_u32(&w, out->plugin);
	wr_u32(&w, out->hook);
	wr_u32(&w, out->rank);
	wr_str(&w, out->what, sizeof(out->what));
	struct iovec iov = {buf, w.len};
	(void)packet_send(h->control, &iov, 1, NULL, 0); /* end of file tells us next */
}
